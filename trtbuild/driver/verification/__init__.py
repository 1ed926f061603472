"""``trtbuild verify``: compare conversions and engines with PyTorch, within a tolerance.

* `models` verifies the models of a project. `packages` verifies packages without a project.
* `document` has the options, and creates the document of the results.
* `jobs` derives the comparisons from a model's plan. `float_traces` traces the float model of a quantized model.
* `subject` has a model and its options.
* `engine_comparisons` compares engines on this machine, and `worker_comparisons` compares engines on workers.
* `records` stores and reads results.
* `replay` reads a file of inputs, and returns its point: the sizes of all dims, and a profile.
* `verified_build` adds a verification to the result of a build.
"""
