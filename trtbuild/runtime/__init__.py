"""Load and run packages. This layer imports neither the build, the store nor TensorRT: engines are behind protocols.

The folders, from the lowest layer to the highest: `memory` and `packages`; `calls`; `engines`.
"""
