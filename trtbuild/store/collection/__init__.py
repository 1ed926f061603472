"""Checking and collecting: which entries are damaged, which are old, and how they are removed beside running builds.

Uses `local`, `remote`, `transports` and `trust`.
"""
