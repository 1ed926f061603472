"""Files that make a build without changes fast: the snapshot that `trtbuild.null_build` compares, and depfiles for make.

This package uses `answers`, `project` and `configuration`.
"""
