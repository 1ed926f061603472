"""What may be written in a manifest: fields, kinds of values, the schema, and messages for mistakes.

Uses `yaml_text`.
"""
