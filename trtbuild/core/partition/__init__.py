"""Partitions as values: how a graph is cut, the document that the partition step writes, recorded networks.

Uses `values` and `model`.
"""
