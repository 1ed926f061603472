"""Arrays and device memory, from torch where it is, else from the CUDA driver. `device_memory` has the rules.

Uses no other room.
"""
