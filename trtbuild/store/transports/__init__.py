"""Transports, which read and write the files of a remote: over HTTP, in a shared directory, in an object store.

All transports have one interface (`transport`), which does not depend on the form of records. `kinds` is the table of all
transports. `patience` retries the calls of any transport, and gives up a remote that fails. This folder uses `store.local`.
"""
