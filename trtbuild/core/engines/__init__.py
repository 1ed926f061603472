"""Engines as values: the job of an engine step, its weights, the layers of the result, what running one needs.

Uses `values` and `model`.
"""
