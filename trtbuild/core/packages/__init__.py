"""Packages as values: the contents of a package, its index, and the reader of an index from an untrusted file.

Imports `values`, `model`, `engines`, `partition` and `recipes`.
"""
