"""Load and run packages. This layer imports neither the build, the store nor TensorRT: engines are behind protocols.

Rooms, from the bottom: `memory` and `packages`; `calls`; `engines`.
"""
