"""Installed TensorRT libraries: their flavours, their loading, and the differences between releases. Also finds GPUs.

This folder uses no other folder of the toolchain.
"""
