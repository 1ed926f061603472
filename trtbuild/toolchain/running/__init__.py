"""TensorRT's runtime behind the protocols of `core.engines.execution`.

This folder uses `libraries`.
"""
