"""Load the source of a model as a module or a graph: Python, exported programs, TorchScript, ONNX and TensorRT networks.

This folder uses `export`, `quantization`, `user_code`, `job` and `examples`.
"""
