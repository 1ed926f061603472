"""Caches of a team: stores that are somewhere else, and never in the way.

`transport` is what carries bytes (HTTP, object stores, a shared directory); `patience` wraps one with retries, limits and a
circuit breaker; `store` keeps records and blobs over any of them, and verifies all that comes back.
"""
