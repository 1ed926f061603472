"""User code: its files, its frames in tracebacks, and advice on its errors.

Uses no other room.
"""
