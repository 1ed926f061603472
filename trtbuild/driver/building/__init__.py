"""Running what plans say has to run: scheduling, steps, progress events, the timeline.

In: a `Request`. Out: a `BuildResult`. The walk: `build` → `executor` → `steps` → `workers.pool`.
Uses `answers`, `workers`, `packages`, `project`, `configuration` and `outputs`.
"""
