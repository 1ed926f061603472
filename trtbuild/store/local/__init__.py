"""The local store: a directory with one file for each entry. `local` states the rules, `layout` defines the paths.

This folder uses `trust`.
"""
