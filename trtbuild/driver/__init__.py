"""Commands, without a terminal: planning over a store, building in worker processes, packages, caches, inspection.

Each room is one subject. From the bottom: `configuration` and `outputs`; `project` (with `wiring`, the composition root);
`packages` and `doctor`; `workers` and `answers`; `building` and `inspection`; and on top, side by side, `cache`,
`in_program`, `running`, `up_to_date` and `verification`.
"""
