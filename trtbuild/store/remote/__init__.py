"""Remote caches, which a team shares. `store` reads and writes records and blobs over any transport, and verifies
everything that it reads.

`files` handles the CAS files, and `records` handles the entries. This folder uses `transports`, `local` and `trust`.
"""
