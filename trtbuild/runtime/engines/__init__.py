"""Run engines: contexts, profiles, CUDA graphs, workspaces, and the file of compiled kernels.

This folder uses `calls` and `memory`.
"""
