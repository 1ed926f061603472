"""Checking and collecting: find the entries that are damaged or old, and remove them while builds run.

Uses `local`, `remote`, `transports` and `trust`.
"""
