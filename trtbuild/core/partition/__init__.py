"""Partitions as values: the division of a graph, the document of the partition step, recorded TensorRT networks, and the
text that describes an engine in a ``.pt2`` file.

Imports `values` and `model`.
"""
