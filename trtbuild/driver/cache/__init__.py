"""The `cache` and `lock` commands: statistics, collection, push and pull, bundles, rebuilding, signing keys.

Uses `building` and the packages below it.
"""
