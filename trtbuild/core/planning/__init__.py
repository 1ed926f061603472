"""Planning decides which steps of a model have to run, and why. It runs nothing, and reads the store through `Lookups`.

Input: models, facts, records. Output: plans with a verdict and a reason for each step; lock files.
Imports all other subpackages of core.
"""
