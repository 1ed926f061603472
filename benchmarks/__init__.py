"""Measure trtbuild, and compare each number with a peer or a floor of the same run: ``python -m benchmarks``."""
