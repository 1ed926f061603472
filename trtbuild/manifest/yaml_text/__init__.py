"""YAML text as a tree of nodes with their lines and columns, and messages about syntax errors."""
