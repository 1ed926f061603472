"""Packages as values: contents, recipe, index, verification results, ``.pt2`` files, and the libraries that run engines.

Imports `values`, `model`, `engines`, `partition` and `recipes`.
"""
