"""``trtbuild doctor``: what is wrong with an installation, and the command that mends it.

A file for each thing that is looked at: `interpreter` (Python, trtbuild itself, the command on PATH), `libraries` (torch,
onnx and the toolchains, each imported in a process of its own), `machine` (GPU, clock, text encoding), `storage` (cache,
index, the project's state), `remotes` (the user's configuration, team caches, keys), `project` (manifest and targets).
`examination` puts them in order.

Rules
1. A check returns findings and never raises: what it meets is what it finds.
2. Nothing is changed but files of its own, which it removes.
3. A problem keeps something from working, a warning may; each has the command that mends it (`fix`).
4. Where nothing of torch is installed that is no fault: such a machine plans, and takes what others have built.
"""
