"""Engines as values: the job of an engine step, its weights, the engine's layers, the contents of its plan, and the
protocols for running it.

Imports `model`.
"""
