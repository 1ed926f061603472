"""Output on the terminal: colour, progress, a live area, a pager, and the format of numbers and reasons.

This folder uses no other package of `trtbuild.cli`.
"""
