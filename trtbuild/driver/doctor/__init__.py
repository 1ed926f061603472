"""``trtbuild doctor``: find the problems of an installation, with the command that fixes each.

* `interpreter`: Python, trtbuild, the command on PATH
* `libraries`: torch, onnx and the toolchains, each imported in a separate process
* `machine`: GPU, clock, encoding
* `storage`: cache, index, state
* `remotes`: configuration, remote caches, keys
* `project`: manifest and targets

`examination` runs all checks in order. Uses `driver.project` and `driver.configuration`.
"""
