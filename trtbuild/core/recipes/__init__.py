"""Recipes, keys and records: what a step depends on, the key that names it, what it left, and who vouches for that.

In: values of `model` and `engines`, digests, versions. Out: recipes and records. A wrong key is the worst bug of this
project. Uses `values`, `model` and `engines`.
"""
