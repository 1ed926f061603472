"""``trtbuild doctor``: what is wrong with an installation, and the command that mends it.

A file for each thing that is examined: `interpreter` (Python, trtbuild, the command on PATH), `libraries` (torch, onnx and
the toolchains, each imported in a process of its own), `machine` (GPU, clock, encoding), `storage` (cache, index, state),
`remotes` (configuration, team caches, keys), `project` (manifest and targets). `examination` puts them in order.
Uses `project` and `configuration`.
"""
