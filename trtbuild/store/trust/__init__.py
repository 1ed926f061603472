"""Signatures: Ed25519 keys, the keys that this machine trusts, and the stored form of a record and its signatures.

This folder uses no other folder of the store.
"""
