"""The measurements of ``python -m benchmarks``, one file each. `rows` of a file measures, and yields rows of the table.

They share the modules beside this folder, for rows, timing, projects, peers and nginx.
"""
