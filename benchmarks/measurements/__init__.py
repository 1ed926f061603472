"""The measurements of ``python -m benchmarks``, one file each. The function `rows` of each file yields rows of the table.

The files share the modules of the parent folder, for rows, timing, projects, other build systems (peers) and nginx.
"""
