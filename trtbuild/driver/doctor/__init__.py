"""``trtbuild doctor``: find the problems of an installation, and say how to correct each problem.

`examination` runs the checks of all other files in order. This folder uses `driver.project` and `driver.configuration`.
"""
