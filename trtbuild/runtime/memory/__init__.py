"""Arrays and device memory, from torch if it is installed, otherwise from the CUDA driver. The rules are in
`device_memory`.

Uses no other folder of the runtime.
"""
