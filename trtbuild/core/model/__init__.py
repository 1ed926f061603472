"""Models as manifests declare them, the shapes, points and tolerances that follow, and the results of verifications.

Imports `values`.
"""
