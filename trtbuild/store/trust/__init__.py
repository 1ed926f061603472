"""Signatures: Ed25519 keys, the keys that this machine trusts, and the signed form of a record.

Uses no other folder of the store.
"""
