"""The watchers of a build: objects that receive its events.

`events` has the base class `Watcher`, which has a method for each event. `build` and `execution` call these methods.
`recorder` makes the events of ``--events`` and of reports, and `timeline` writes the file of ``--trace``. The watchers that
print to a terminal are in `trtbuild.cli.terminal`. This folder imports no other folder of `building`.
"""
