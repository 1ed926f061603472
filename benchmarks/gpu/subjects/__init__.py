"""The measurements of ``python -m benchmarks.gpu measure``, one file each. `rows` of a file measures, and yields rows of
the table."""
