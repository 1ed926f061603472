"""Decide when each step of a build starts, and how many steps run at once.

Input: plans, and the functions that plan a model again, run a step and write outputs (`Callbacks`). Output: an `Outcome`.
Order for reading: `executor` → `schedule` → `thread_pool`. `memory` and `gpu_limit` limit the steps that run at once.
`estimates` has the expected time and memory of a step. This folder imports `progress`, and no other folder of `building`.
"""
