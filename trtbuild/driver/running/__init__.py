"""Run packages: ``trtbuild run``, ``trtbuild bench``, and the model that Triton serves.

This folder uses `building`, `workers`, `packages`, `project` and `outputs` of `driver`.
"""
