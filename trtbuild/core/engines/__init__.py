"""Engines as values: jobs that build them, their weights and layers, the contents of plans, and protocols to run engines.

Imports `model`.
"""
