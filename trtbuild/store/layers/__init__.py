"""A local store with remotes behind it: the first hit wins; blobs are fetched, and new records are uploaded.

It has the contract of `core.recipes.ports`, like the stores below it. Uses `local`, `remote` and the folders below these.
"""
