"""The local store: a directory with one file for each entry. `local` has the rules, `layout` the places.

Uses `digests` and `trust`.
"""
