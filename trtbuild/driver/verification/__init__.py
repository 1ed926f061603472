"""``trtbuild verify``: compare conversions and engines with PyTorch, within a tolerance.

* `models` verifies the models of a project. `packages` verifies packages without a project.
* `document` has the options, and creates the document of the results.
* `jobs` derives the jobs of comparisons from a model's plan. `verified_model` has the model, its plan and its options.
* `float_traces` traces the float model of a quantized model.
* `engine_comparisons` compares engines on this machine, and `worker_comparisons` on the workers of a scheduler.
* `records` stores and reads results.
* `replay` reads the sizes of the dims from a file of inputs.
* `verified_build` adds a verification to the result of a build.
"""
