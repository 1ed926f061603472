"""The `cache` and `lock` commands: statistics, collection, push and pull, bundles, rebuilding, keys to sign with.

Uses `building` and the rooms below it.
"""
