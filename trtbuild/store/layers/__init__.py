"""A local store with remotes behind it: lookups, fetched blobs, and uploads of new records.

This folder uses `local`, `remote` and `transports`.
"""
