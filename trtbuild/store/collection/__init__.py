"""Checks that find damaged entries, and the collection (garbage collection) of old entries. Builds may run meanwhile.

Uses `local`, `remote`, `transports` and `trust`.
"""
