"""Commands that build nothing (plan, why, graph, status, affected, diff, init), and the documents of ``--json``.

This folder uses `packages`, `project` and `configuration`.
"""
