"""The format of a manifest: fields, kinds of values, the JSON Schema, and the messages about mistakes."""
