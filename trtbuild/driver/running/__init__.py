"""Run packages: the commands `run` and `bench`, and the model that Triton serves.

This folder uses `building`, `workers`, `packages`, `project` and `outputs` of `driver`.
"""
