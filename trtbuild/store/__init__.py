"""Records and blobs: on this machine, and in caches that a team shares. cache/README.md describes the formats.

Rooms, from the bottom: `digests` and `trust`; `local`; `transports`; `remote`; and on top `layers` (a local store with
remotes behind it), `collection` (removes old entries) and `bundle` (records in one file).
"""
