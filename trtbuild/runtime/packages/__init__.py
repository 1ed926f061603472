"""A package on disk: its files, which are verified while they are read, and the choice of a target and a profile.

This folder uses no other folder of the runtime.
"""
