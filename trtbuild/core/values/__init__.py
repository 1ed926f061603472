"""Basic values: the canonical encoding, dataclasses as JSON, size expressions, ranges of values, element types, module
paths, suggestions for names, safetensors files, and the headers of shared libraries.

Imports no other subpackage of core.
"""
