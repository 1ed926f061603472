"""Digests of files, computed with as little reading as is safe, and the index that remembers them.

Uses no other room.
"""
