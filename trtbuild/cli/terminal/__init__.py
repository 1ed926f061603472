"""Writing to the terminal at hand: colour, progress, a live area, numbers and reasons in words.

Uses no other room.
"""
