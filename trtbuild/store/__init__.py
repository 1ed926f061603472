"""Records and blobs: on this machine, and in caches that a team shares. docs/store-format.md describes the formats.

The modules, from the lowest layer to the highest:

* `digests` (digests of files) and `trust` (signatures)
* `local` (the store in a directory)
* `transports` (how entries get to a remote and back)
* `remote` (records and blobs over a transport)
* `layers` (a local store with remotes behind it), `collection` (removal of old entries) and `bundle` (records in one file)
"""
