"""A project that one command has opened: its models, its store, its history, and the facts about this machine.

A command creates a `Workspace` from a `Request`. The workspace makes plans. `wiring` is the composition root: it chooses
the classes of the store and the remotes. This folder uses `configuration` and `outputs`.
"""
