"""User code seen from outside: where it lies, which frames are the user's, and advice on its errors.

Uses no other room.
"""
