"""Running the steps of plans: scheduling, progress events, the timeline.

Input: a `Request`. Output: a `BuildResult`. Order for reading: `build` → `executor` → `steps` → `workers.pool`.
Uses `answers`, `workers`, `packages`, `project`, `configuration` and `outputs`.
"""
