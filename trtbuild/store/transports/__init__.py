"""How the entries of a remote travel: HTTP, a shared directory, object stores; timeouts, retries, credentials.

A transport is one small interface (`transport`). It knows nothing of records. Uses `local`.
"""
