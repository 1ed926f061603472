"""Basic values: the canonical encoding, dataclasses as JSON and their JSON Schemas, size expressions, ranges of values,
element types, numbers that models return, module paths, suggestions for names, safetensors files, and the headers of
shared libraries.

Imports no other subpackage of core.
"""
