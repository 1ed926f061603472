"""Packages as values: contents, recipe, index, verification results, ``.pt2`` files, and the libraries that run engines.

`package_reading` treats the bytes of an index as untrusted.

Imports `values`, `model`, `engines`, `partition` and `recipes`.
"""
