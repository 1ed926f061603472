"""Arrays and device memory, from torch if it can use a GPU here, otherwise from the CUDA driver.

This folder uses no other folder of the runtime.
"""
