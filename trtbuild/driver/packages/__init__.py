"""Packages on this machine: finding one, opening it, its engines, its provenance, the operator of ``.pt2`` files.

Uses `project` and `outputs`.
"""
