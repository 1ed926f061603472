"""Records and blobs: on this machine, and in caches that a team shares. cache/README.md describes the formats.

The folders, from the lowest layer to the highest: `digests` and `trust`; `local`; `transports`; `remote`. The highest layer
has `layers` (a local store with remotes behind it), `collection` (removes old entries) and `bundle` (records in one file).
"""
