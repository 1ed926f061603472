"""Commands that build nothing: plan, why, graph, status, affected, diff, init; and the documents of ``--json``.

Uses `packages`, `project` and `configuration`.
"""
