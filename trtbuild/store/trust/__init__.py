"""Signatures: Ed25519 keys, the keys that this machine trusts, and the form in which a record and its signatures are
stored.

This folder uses no other folder of the store.
"""
