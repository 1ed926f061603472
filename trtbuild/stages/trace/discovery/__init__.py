"""Discover the dependencies of a trace while user code runs: files, modules, variables, distributions, operators.

This folder uses the folder `user_code`.
"""
