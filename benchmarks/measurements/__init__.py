"""The measurements of ``python -m benchmarks``, one file each. The function `rows` of a file yields the rows of a table."""
