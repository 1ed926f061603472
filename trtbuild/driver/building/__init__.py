"""Run the steps of plans, and write the outputs.

Input: a `Workspace` (made from a `Request`) and a `Watcher`, which receives the events of a build. Output: a `BuildResult`.
Order for reading: `build` → `execution.executor` → `steps.run_step` → `workers.pool`. `execution` decides when a step
starts, `steps` runs one step, and `progress` has `Watcher`. `write_outputs` writes the outputs of a model, and
`farm_of_build` connects a build to the workers of a scheduler.
This folder uses `answers`, `event_log`, `farm`, `workers`, `project`, `configuration` and `outputs`.
"""
