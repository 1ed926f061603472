"""Pure values and rules: no torch, TensorRT, disk, clock, environment or network.

In: what manifests declare, records, and facts about the machine, all as values. Out: recipes, keys, plans and package
indexes. Rooms, from the bottom: `values`, `model`, `engines` and `partition`, `recipes`, `packages`, `planning`. Each may
use those below.
"""
