"""trtbuild inside a running program: `compile` for a module in memory, and the backend of ``torch.compile``.

This package uses the planner, keys, workers and cache of the command line. It differs from the command line in two ways:
there is no manifest, and the model is traced in the program's process. docs/in-a-program.md is the page for users.
"""
