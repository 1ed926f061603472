"""Calling a package: arguments, partitions in order, outputs in the structure of the original module.

Uses `memory` and `packages`.
"""
