"""Adaptations for TensorRT 8, which has no strong types and computes int64 in 32 bits, and the rewriting of batch
normalization in half precision, for releases with strong types.

This folder uses `onnx_files`.
"""
