"""Discover the dependencies of a trace while user code runs: files, modules, variables, distributions, operators.

This folder uses `user_code` and `examples`.
"""
