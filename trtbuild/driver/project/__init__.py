"""A project that a command has opened: its models, its store, its history, and the facts about this machine.

A command creates a `Workspace` from a `Request`, and the workspace makes the plans. `wiring` chooses the classes of the
store and the remotes. This folder uses `configuration` and `outputs`.
"""
