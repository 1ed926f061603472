"""Models as manifests declare them, the shapes, points and tolerances of a model, and the results of verifications.

A point is one choice of the sizes of the symbols (dynamic dimensions). Imports `values`.
"""
