"""Load and run packages. This layer does not import the build, the store or TensorRT. It uses engines through protocols.

The folders `memory` and `packages` use no other folder here. `calls` uses both, and `engines` uses `calls` and `memory`.
"""
