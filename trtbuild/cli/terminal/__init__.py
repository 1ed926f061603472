"""Output on the terminal: colour, progress, a live area (rows that are redrawn in place), a pager, and readable numbers.

This folder uses no other package of `trtbuild.cli`.
"""
