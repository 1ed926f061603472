"""Checking and collecting: which entries are damaged, which are old, and how they are removed while builds run.

Uses `local`, `remote`, `transports` and `trust`.
"""
