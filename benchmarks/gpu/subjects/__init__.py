"""The measurements of ``python -m benchmarks.gpu measure``, one file each. The function `rows` of each file yields
rows of the printed table."""
