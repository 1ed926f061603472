"""Call a package: check arguments, run partitions in order, and return outputs in the structure of the original module.

This folder uses `memory` and `packages`.
"""
