"""The events of a build as values, and as files of JSON lines: ``build --events`` and ``.trtbuild/builds``.

A report is made from these events, so there is a report even if the build was killed.
"""
