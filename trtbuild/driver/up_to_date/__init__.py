"""Files for builds without changes: the snapshot that `trtbuild.null_build` checks, and depfiles for make and ninja.

`snapshot` writes snapshots, `snapshot_rows` collects their contents, and `settled` checks that files are unchanged.
`depfile` writes depfiles, whose text comes from `make_rules`. This folder uses `answers`, `configuration` and `project`.
"""
