"""Engines as values: the job of an engine step, weights, layers, the contents of plans, and the protocols for running
engines.

Imports `model`.
"""
