"""Commands, without a terminal: planning over a store, building in worker processes, packages, caches, inspection.

Each subpackage has one subject, and imports only from the layers below its own. The layers, from the lowest to the highest:

1. `configuration` and `outputs`
2. `project` (with `wiring`, the composition root)
3. `packages` and `doctor`
4. `workers` and `answers`
5. `building` and `inspection`
6. `cache`, `in_program`, `running`, `up_to_date` and `verification`; these do not import one another
"""
