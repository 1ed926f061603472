"""The measurements of ``python -m benchmarks.gpu measure``, one file each. The function `rows` of a file yields the rows
of a table."""
