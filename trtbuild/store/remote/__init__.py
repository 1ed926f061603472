"""Remote caches, which a team shares: `store` reads and writes records and blobs over any transport, and verifies all that
it reads.

`files` handles the CAS files, `records` the entries. Uses `transports`, `local` and `trust`.
"""
