"""Running the steps of plans: scheduling, progress events, the timeline.

In: a `Request`. Out: a `BuildResult`. Read in this order: `build` → `executor` → `steps` → `workers.pool`.
Uses `answers`, `workers`, `packages`, `project`, `configuration` and `outputs`.
"""
