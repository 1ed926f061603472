"""Adaptations for TensorRT before 9 and others without strong types: 32 bit integers, half precision weights and norms.

Uses `onnx_files`.
"""
