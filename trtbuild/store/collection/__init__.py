"""Checking and collection: they find entries that are damaged or old. Collection removes entries while builds run.

Uses `local`, `remote`, `transports` and `trust`.
"""
