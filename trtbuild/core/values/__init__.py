"""Basic values: the canonical encoding, dataclasses as JSON with schemas, size expressions, ranges of values, numbers among
results, the table of element types, patterns of module paths, suggestions for names, safetensors files, and shared libraries.

Imports no other subpackage of core.
"""
