"""Call torch.export under the declared ranges; handle its constraints and guards, the weights and the interface.

This folder uses `quantization`, `user_code`, `job` and `examples`.
"""
