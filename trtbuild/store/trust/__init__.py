"""Signatures: Ed25519 keys, whom this machine believes, and the signed form of a record.

Uses no other room.
"""
