"""Load and run packages. This layer imports neither TensorRT nor the code that builds. It uses engines through protocols.

The folders `memory` and `packages` use no other folder here. `calls` uses both, and `engines` uses `calls` and `memory`.
"""
