"""YAML text as nodes with their places, and messages for syntax errors. Uses no other module of `trtbuild.manifest`."""
