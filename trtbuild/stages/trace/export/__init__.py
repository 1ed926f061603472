"""torch.export under the declared ranges, with its constraints, guards, weights and interface.

Uses `user_code`, `job` and `examples`.
"""
