"""Measure trtbuild: ``python -m benchmarks``.

A benchmark compares trtbuild with another tool (a *peer*), or with the least possible time (a *floor*). It measures both
in the same run.
"""
