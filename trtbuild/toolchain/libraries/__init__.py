"""Installed TensorRT libraries: flavours, differences of releases, loading, GPUs.

Uses no other folder of the toolchain.
"""
