"""Models as manifests declare them, their shapes and tolerances, and the results of verifications.

Imports `values`.
"""
