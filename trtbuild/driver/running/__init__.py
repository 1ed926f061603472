"""Run packages: the commands `run` and `bench`, and the model that Triton serves.

Uses `building`, `workers`, `packages` and `project` of `driver`.
"""
