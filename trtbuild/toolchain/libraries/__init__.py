"""TensorRT as it is installed: flavours, releases and how they differ, loading, GPUs.

Uses no other room.
"""
