"""Checks that find damaged entries, and the collection (garbage collection) of old entries. Builds may run meanwhile.

This folder uses `local`, `remote`, `transports` and `trust`.
"""
