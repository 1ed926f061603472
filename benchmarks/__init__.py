"""Measure trtbuild: ``python -m benchmarks``.

The numbers are compared with those of another tool (a *peer*) or with the least possible time (a *floor*). Both numbers of
a comparison are measured in the same run.
"""
