"""What makes a build with nothing to do cheap: the snapshot that `trtbuild.null_build` compares, and make's depfiles.

Uses `building`, `project` and the rooms below.
"""
