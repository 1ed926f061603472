"""The work of the commands, without the terminal: planning, building in worker processes, packages, caches, inspection.

Each subpackage has one subject, and imports only from the layers below its own. These are the layers, the lowest first:

`configuration` and `outputs`; `project` (with `wiring`, the composition root); `packages` and `doctor`; `gpu_comparisons`;
`workers` and `answers`; `event_log` and `farm`; `building` and `inspection`; `cache`, `in_program`, `running`, `up_to_date`
and `verification`; `reports`; `watching`. Subpackages of one layer do not import one another.
"""
