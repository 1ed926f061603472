"""Adaptations for TensorRT 8, which has no strong types and computes int64 in 32 bits.

`half_norms` is for later releases: it rewrites batch normalizations with half-precision input.

This folder uses `onnx_files`.
"""
