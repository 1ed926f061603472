"""A local store with remotes behind it. The first hit wins. Blobs are fetched, and new records are uploaded.

This store has the contract of `core.recipes.ports`, like a local store.
This folder uses `local`, `remote` and `transports`.
"""
