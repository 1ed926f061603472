"""Transports, which read and write the entries of a remote: over HTTP, in a shared directory, in an object store.

A transport has one small interface (`transport`), which does not depend on the form of records. `kinds` is the table of all
transports, and `patience` adds retries, limits and a circuit breaker to any of them. Uses `local`.
"""
