"""trtbuild inside a running program: `compile` for a module that is in memory, and the backend of ``torch.compile``.

The same planner, keys, workers and cache as the command line's; only what makes a model is another (no manifest, and a
trace in this process). docs/in-a-program.md is for users.
"""
