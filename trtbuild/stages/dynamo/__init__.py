"""Graphs that torch.compile hands to a backend."""
