"""torch.export under the declared ranges, and what it must not lose: constraints, guards, weights, the interface.

Uses `user_code`, `job` and `examples`.
"""
