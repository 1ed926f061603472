"""The proof of a trace: program and module compute the same results at the ends of every profile, and at sizes where
torch's assumptions about sizes (guards) fail.

This folder uses `export`, `user_code`, `job` and `examples`.
"""
