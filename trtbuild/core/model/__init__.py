"""Models as manifests declare them, and the shapes, profiles and tolerances that follow.

Imports `values`.
"""
