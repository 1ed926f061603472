"""Measure engines on a real GPU: correct results at every shape, latency, overhead over a bare loop. See docs/gpu.md."""
