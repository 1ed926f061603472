"""TensorRT's runtime behind the protocols of `core.engines.execution`.

Uses `libraries`.
"""
