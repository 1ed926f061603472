"""trtbuild inside a running program: `compile` for a module in memory, and the backend of ``torch.compile``.

Unlike on the command line, there is no manifest, and the model is traced in the program's process. The planner, the keys,
the workers and the cache are the same. docs/in-a-program.md is the page for users.
"""
