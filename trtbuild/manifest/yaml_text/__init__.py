"""YAML text as nodes that know their line, and syntax errors in plain words.

Uses no other room.
"""
