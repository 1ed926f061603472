"""The division of a graph into partitions, and the documents about partitions, TensorRT networks and engines.

Imports `values` and `model`.
"""
