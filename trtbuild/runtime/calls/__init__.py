"""Call a package: check arguments, run partitions in order, and return outputs with the structure of the model's outputs.

This folder uses `memory` and `packages`.
"""
