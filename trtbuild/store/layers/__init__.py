"""A local store with remotes behind it: the first hit wins, and what is needed is fetched or uploaded.

In: the contract of `core.recipes.ports`. Out: the same contract. Uses `local`, `remote` and the rooms below.
"""
