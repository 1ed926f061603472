"""Arrays and device memory, from torch if it is installed, otherwise from the CUDA driver. `device_memory` has the rules.

Uses no other folder of the runtime.
"""
