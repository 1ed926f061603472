"""Adaptations for TensorRT 8, which has no strong types and computes int64 in 32 bits. For releases with strong
types, `half_norms` rewrites batch normalizations with half-precision input.

This folder uses `onnx_files`.
"""
