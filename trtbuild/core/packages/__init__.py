"""Packages as values: contents, recipe, index, verification results, ``.pt2`` files, and the libraries that run engines.

The reader of an index accepts bytes from untrusted files.

Imports `values`, `model`, `engines`, `partition` and `recipes`.
"""
