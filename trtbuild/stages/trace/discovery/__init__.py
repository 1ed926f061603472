"""What a trace depends on, discovered while user code runs: files, modules, variables, distributions, operators.

Uses `user_code`.
"""
