"""Files that make a build without changes fast: the snapshot that `trtbuild.null_build` checks, and depfiles for make.

`snapshot` writes snapshots, `snapshot_rows` collects their contents, and `settled` checks that files are unchanged.
`depfile` writes depfiles, whose text comes from `make_rules`. This folder uses `answers`, `configuration` and `project`.
"""
