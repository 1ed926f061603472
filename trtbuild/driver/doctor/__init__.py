"""``trtbuild doctor``: find the problems of an installation, and say how to correct each problem.

* `interpreter`: Python, trtbuild, the command on PATH
* `libraries`: torch, onnx and the toolchains, each imported in a separate process
* `machine`: GPU, clock, text encoding
* `storage`: the cache, the project's local state, and the index of file digests in it
* `remotes`: configuration, remote caches, keys
* `project`: manifest and targets

`examination` runs all checks in order. Uses `driver.project` and `driver.configuration`.
"""
