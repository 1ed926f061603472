"""Run engines: contexts, profiles, CUDA graphs, workspaces, and the file of compiled kernels.

Uses `calls` and `memory`.
"""
