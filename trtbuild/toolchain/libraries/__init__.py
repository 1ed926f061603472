"""Finds and loads the installed TensorRT libraries, and knows the differences between releases. Also finds GPUs.

This folder uses no other folder of the toolchain.
"""
