"""Run the steps of plans, and write the outputs.

Input: a `Workspace`, and a `Watcher`, which receives the events of the build. Output: a `BuildResult`. Order for reading:
`build` → `execution.executor` → `steps.run_step` → `workers.pool`. `execution` decides when a step starts, `steps` runs one
step, and `progress` has `Watcher`. `farm_of_build` connects a build to the workers of a Dask scheduler.
This folder uses `answers`, `event_log`, `farm`, `workers`, `project`, `configuration` and `outputs`.
"""
