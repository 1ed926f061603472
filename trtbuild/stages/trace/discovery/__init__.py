"""Discover the dependencies of a trace while user code runs: files, modules, environment variables, distributions and
operators.

This folder uses `user_code` and `examples`.
"""
