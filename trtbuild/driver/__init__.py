"""The work of the commands, without the terminal: planning, building in worker processes, packages, caches, inspection.

Each subpackage has one subject, and imports only from lower layers. The layers, from the lowest to the highest:

1. `configuration`, `outputs`
2. `project` (with `wiring`, the composition root)
3. `packages`, `doctor`
4. `gpu_comparisons`
5. `workers`, `answers`
6. `event_log`, `farm`
7. `building`, `inspection`
8. `cache`, `in_program`, `running`, `up_to_date`, `verification`
9. `reports`
10. `watching`
"""
