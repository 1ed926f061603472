"""Comparing what was converted, or compiled, with PyTorch."""
