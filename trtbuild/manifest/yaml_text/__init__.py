"""YAML text as nodes with their places, and messages for syntax errors.

This folder uses no other module of `trtbuild.manifest`.
"""
