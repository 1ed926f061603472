"""The format of a manifest: fields, kinds of values, the JSON Schema, and the messages for mistakes.

This folder uses `yaml_text`.
"""
