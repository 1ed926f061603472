"""Measure trtbuild: ``python -m benchmarks``.

Most benchmarks compare trtbuild with another tool (a *peer*), or with the least possible time (a *floor*). They measure
both in the same run.
"""
