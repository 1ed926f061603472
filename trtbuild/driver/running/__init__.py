"""The `run` and `bench` commands, and the model that Triton serves: packages that compute.

Uses `building`, `workers`, `packages` and `project`.
"""
