"""Installed TensorRT libraries: their flavours, the differences between releases, how they are loaded, and GPUs.

Uses no other folder of the toolchain.
"""
