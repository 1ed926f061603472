"""``trtbuild doctor``: find the problems of an installation, and say how to correct each problem.

* `interpreter`: Python, trtbuild, the command on PATH
* `libraries`: torch, onnx and the toolchains, each imported in a separate process
* `machine`: GPU, clock, text encoding
* `storage`: the cache, and the project's local state with the index of file digests
* `remotes`: configuration, remote caches, keys
* `project`: manifest and targets

`examination` runs all checks in order. This package uses `driver.project` and `driver.configuration`.
"""
