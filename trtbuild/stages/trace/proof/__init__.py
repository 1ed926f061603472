"""The proof of a trace: the exported program computes what the module computes, at the ends of every profile.

Uses `export`, `user_code`, `job` and `examples`.
"""
