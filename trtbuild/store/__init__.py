"""Records and blobs: on this machine, and in caches that a team shares. The formats are in cache/README.md.

Rooms, from the bottom: `digests` and `trust`; `local`; `transports`; `remote`; and on top `layers` (a local store with
remotes behind it), `collection` (what is removed, and when) and `bundle` (records in one file).
"""
