"""A package on disk: its files, verified as they are read, and the choice of a target and a profile.

Uses no other folder of the runtime.
"""
