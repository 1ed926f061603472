"""Load the source of a model as a module or graph: Python, exported programs, TorchScript, ONNX, networks.

This folder uses `export`, `quantization`, `user_code`, `job` and `examples`.
"""
