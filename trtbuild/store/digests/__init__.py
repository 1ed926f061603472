"""Digests of files, computed with as little reading as is safe, and the index that stores them.

Uses no other folder of the store.
"""
