"""Run engines with TensorRT's runtime.

This folder uses `libraries`.
"""
