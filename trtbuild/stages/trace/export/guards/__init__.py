"""Read, remove and evaluate the guards of torch.export: conditions on sizes that torch assumes while it traces a model.

The functions take the expressions of torch.export, and return the sizes at which guards fail. This folder uses `job` and
`user_code`.
"""
