"""The events of a build as values, and the files of JSON lines that have them: ``build --events`` and ``.trtbuild/builds``.

A report is made from these events, so a build that was killed has one, too.
"""
