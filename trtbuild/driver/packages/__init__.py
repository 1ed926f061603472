"""Packages on this machine: find and open a package, its engines, its provenance, and the operator of ``.pt2`` files.

Uses `driver.project` and `driver.outputs`.
"""
