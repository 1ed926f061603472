"""Models as manifests declare them, the shapes, points and tolerances of a model, and the results of verifications.

Imports `values`.
"""
