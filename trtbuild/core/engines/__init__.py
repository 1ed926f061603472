"""Engines as values: the job of an engine step, its weights, the engine's layers, and the protocol for running an engine.

Imports `values` and `model`.
"""
