"""Small values with rules of their own: the canonical encoding, size expressions, ranges of values, nearest names.

Uses no other room.
"""
