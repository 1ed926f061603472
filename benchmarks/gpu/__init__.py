"""Measure engines on a real GPU: right results at every shape, latency, and overhead over a bare loop. See docs/gpu.md."""
