"""Recipes, keys and records: a step's inputs, its key, its outputs, and signatures on records.

Input: values of `model` and `engines`, digests, versions. Output: recipes and records. A wrong key is the worst bug that
trtbuild can have. Imports `values`, `model` and `engines`.
"""
