"""Find and load packages, write their provenance, and register the operator of ``.pt2`` files.

This folder uses `driver.project` and `driver.outputs`.
"""
