"""Packages as values: the contents of a package, its recipe, its index, the reader of an index from an untrusted file, the
results of verifying it, its ``.pt2`` files, and the choice of the library that runs its engines.

Imports `values`, `model`, `engines`, `partition` and `recipes`.
"""
