"""Loading and running packages. No trtbuild build, store or TensorRT import is needed here: engines come as protocols.

Rooms, from the bottom: `memory` and `packages`; `calls`; `engines`.
"""
