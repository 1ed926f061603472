"""Basic values: the canonical encoding, size expressions, ranges of values, suggestions for names, the table of element
types, and the header of safetensors files.

Imports no other subpackage of core.
"""
