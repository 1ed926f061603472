"""Run engines: contexts, profiles, CUDA graphs, activation memory, and the file of compiled kernels.

This folder uses `calls` and `memory`.
"""
