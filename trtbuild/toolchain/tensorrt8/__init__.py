"""Adaptations for TensorRT before 9 and for other releases without strong types: 32 bit integers, half precision weights
and norms.

Uses `onnx_files`.
"""
