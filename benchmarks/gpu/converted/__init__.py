"""Run converted partitions with TensorRT on a GPU, and compare them with onnxruntime. No torch is needed there."""
