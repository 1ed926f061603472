"""Remote caches, which a team shares. `store` reads and writes records and blobs, and verifies everything that it reads.

`files` handles the files in ``cas/`` (bytes). `records` handles the entries in ``ac/``, which list the files of each
record. This folder uses `transports`, `local` and `trust`.
"""
