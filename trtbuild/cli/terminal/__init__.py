"""Output on the terminal: colour, progress, a live area, and the format of numbers and reasons.

Uses no other package of `trtbuild.cli`.
"""
