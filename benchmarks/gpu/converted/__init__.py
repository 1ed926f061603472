"""Run converted partitions with TensorRT on a GPU, and compare them with onnxruntime. The GPU host needs no torch."""
