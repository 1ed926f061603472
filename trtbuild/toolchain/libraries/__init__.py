"""Installed TensorRT libraries: their flavours, their loading, and the differences between releases. Also finds GPUs.

Uses no other folder of the toolchain.
"""
