"""TensorRT networks: parsed from ONNX, or recorded from a function and replayed.

Uses `libraries` and `onnx_files`.
"""
