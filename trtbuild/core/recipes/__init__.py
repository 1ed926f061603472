"""Recipes, keys and records: a step's inputs, its key, its outputs, and signatures on records.

Input: values of `model` and `engines`, digests, versions. Output: recipes and records. A wrong key is the worst bug that
trtbuild can have, because a build would then use a wrong result. Imports `values`, `model` and `engines`.
"""
