"""Read, remove and evaluate the guards of torch.export: conditions on sizes that torch assumes while it traces a model.

The expressions of torch.export come in, and the sizes at which guards fail leave. This folder uses `job` and `user_code`.
"""
