"""Transports, which read and write the entries of a remote: over HTTP, in a shared directory, in an object store.

All transports have one small interface (`transport`), which does not depend on the form of records. `kinds` is the table of
all transports. `patience` adds retries and a circuit breaker to any transport. This folder uses `store.local`.
"""
