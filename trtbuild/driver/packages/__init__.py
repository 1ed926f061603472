"""Packages on this machine: find and load packages, write provenance, and register the operator of ``.pt2`` files.

This folder uses `driver.project` and `driver.outputs`.
"""
