"""Run engines: contexts, profiles, CUDA graphs, workspaces, the runtime cache.

Uses `calls` and `memory`.
"""
