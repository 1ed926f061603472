"""Checking finds damaged entries. Collection removes old entries, even while builds run.

Uses `local`, `remote`, `transports` and `trust`.
"""
