"""Measure engines on a real GPU: errors at many shapes, latency, overhead over ``execute_async_v3`` (docs/gpu.md)."""
