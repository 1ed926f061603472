"""Records (results of steps) and blobs (bytes named by their SHA-256), on this machine and in caches that a team shares.

docs/store-format.md describes the formats. The modules, from the lowest layer to the highest:

* `digests` (digests of files) and `trust` (signatures)
* `local` (the store in a directory)
* `transports` (read and write the files of a remote, which is a cache on another machine)
* `remote` (records and blobs over a transport)
* `layers` (a local store with remotes behind it), `collection` (removal of old entries) and `bundle` (records in one file)
"""
