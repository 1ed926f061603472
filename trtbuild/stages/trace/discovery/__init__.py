"""Discover the dependencies of a trace while user code runs: files, modules, variables, distributions, operators.

Uses `user_code`.
"""
