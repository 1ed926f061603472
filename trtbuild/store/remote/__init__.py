"""Remote caches, which a team shares: `store` keeps records and blobs over any transport, and verifies all that it reads.

`files` has the CAS files, `records` the entries. Uses `transports`, `local` and `trust`.
"""
