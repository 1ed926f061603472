"""Call a package: check the arguments, run the partitions in order, and return outputs with the model's structure.

This folder uses `memory` and `packages`.
"""
