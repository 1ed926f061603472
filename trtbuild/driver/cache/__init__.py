"""The `cache` and `lock` commands: statistics, collection, push and pull, bundles, rebuilding, signing keys.

This folder uses `building`, `answers`, `workers`, `project`, `configuration` and `outputs`.
"""
