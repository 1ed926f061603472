"""The local store: a directory with one file for each entry. `local` has the rules, and `layout` has the paths.

This folder uses `trust`.
"""
