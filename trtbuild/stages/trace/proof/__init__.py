"""The proof of a trace: the exported program computes what the module computes, at the ends of every profile, and at sizes
where guards fail.

This folder uses `export`, `user_code`, `job` and `examples`.
"""
