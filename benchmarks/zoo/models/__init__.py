"""The architectures of the zoo, with random weights. Each has a function that returns a module in evaluation mode.

The docstrings describe the published sizes, not the small ones (`sizes.py`).
"""
