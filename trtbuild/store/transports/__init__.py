"""Transports of the entries of a remote: HTTP, a shared directory, object stores; timeouts, retries, credentials.

A transport has one small interface (`transport`), and knows nothing of records. `kinds` is the table of all transports, and
`patience` adds retries, limits and a circuit breaker to any of them. Uses `local`.
"""
