"""Converted partitions, which are ONNX models: run them with onnxruntime, and find the facts that comparisons need."""
