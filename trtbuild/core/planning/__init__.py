"""Planning: which steps have to run for a model, and why. Nothing runs here, and the world is asked through `Lookups`.

In: models, facts, records. Out: plans with a verdict and a reason for each step; lock files.
Uses every other room of core.
"""
