"""Partitions as values: dividing a graph, the document of the partition step, recorded networks, and the text that
describes an engine in a ``.pt2`` file.

Imports `values` and `model`.
"""
