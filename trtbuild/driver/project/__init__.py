"""A project that one command has opened: its models, its store, its history, the facts about this machine.

In: a `Request`. Out: a `Workspace`, which makes plans. `wiring` is the composition root: it names every concrete store and
remote. Uses `configuration` and `outputs`.
"""
