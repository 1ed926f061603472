"""Computes the digests of files, and stores them in an index, so that an unchanged file is not read again.

This folder uses no other folder of the store.
"""
