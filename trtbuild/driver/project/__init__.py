"""A project that one command has opened: its models, its store, its history, and the facts about this machine.

A command creates a `Workspace` from a `Request`. The workspace makes plans. `wiring` is the composition root: it names
every concrete store and remote. Uses `configuration` and `outputs`.
"""
