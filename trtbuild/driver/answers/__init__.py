"""Answers without a build: plan, why, graph, status, diff, init; and the documents of ``--json``.

Uses `packages`, `project` and the rooms below.
"""
