"""The events of a running build, and the classes that receive them.

Input: the calls that `build` and `execution` make. `events` has the base class `Watcher` with a method for each event.
`recorder` writes the events of ``--events`` and of reports, and `timeline` writes the file of ``--trace``. The displays of
a terminal are in `trtbuild.cli.terminal`. This package imports no other package of `building`.
"""
