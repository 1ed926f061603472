"""Load and run packages. This layer does not import the build, the store or TensorRT. It uses engines through protocols.

The folders, from the lowest layer to the highest: `memory` and `packages`; `calls`; `engines`.
"""
