"""Planning decides which steps of a model have to run, and why. It runs no step, and reads the store through `Lookups`.

Input: models, records, facts about the machine. Output: plans with a verdict and a reason for each step; lock files.
Imports all other subpackages of core.
"""
