"""The events of a build as values, and as files of JSON lines: ``build --events`` and ``.trtbuild/builds``.

A report is made from these events, so a build that was killed has a report, too.
"""
