"""Load the source of a model as a module or graph: Python, exported programs, TorchScript, ONNX, networks.

Uses `export`, `user_code`, `job` and `examples`.
"""
