"""Recipes, keys and records: the inputs of a step, the key made from them, the step's outputs, and signatures on these.

Input: values of `model` and `engines`, digests, versions. Output: recipes and records. A wrong key is the worst bug that
trtbuild can have. Imports `values`, `model` and `engines`.
"""
