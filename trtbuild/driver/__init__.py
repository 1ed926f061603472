"""The work of the commands, without the terminal: planning, building in worker processes, packages, caches, inspection.

Each subpackage has one subject, and imports only from the layers below its own. These are the layers, the lowest first:

1. `configuration` and `outputs`
2. `project` (with `wiring`, the composition root)
3. `packages` and `doctor`
4. `workers` and `answers`
5. `building` and `inspection`
6. `cache`, `in_program`, `running`, `up_to_date` and `verification`; these do not import one another
"""
