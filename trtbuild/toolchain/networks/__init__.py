"""TensorRT networks: parsed from ONNX, or recorded from a function and replayed.

This folder uses `libraries` and `onnx_files`.
"""
