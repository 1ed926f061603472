"""The measurements of ``python -m benchmarks``, one file each. `rows` of a file measures, and yields the rows of its table.

The modules beside this folder are what they share: rows, timing, projects, peers and nginx.
"""
