"""Partitions as values: dividing a graph, the document of the partition step, and recorded networks.

Imports `values` and `model`.
"""
