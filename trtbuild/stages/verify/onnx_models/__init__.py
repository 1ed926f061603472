"""Run converted partitions, which are ONNX models, with onnxruntime, and find the facts that comparisons need."""
