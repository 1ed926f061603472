"""Packages on this machine: find and open a package, its engines, its provenance, and the operator of ``.pt2`` files.

This package uses `driver.project` and `driver.outputs`.
"""
