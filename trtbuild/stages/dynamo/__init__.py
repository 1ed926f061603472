"""Process the graphs that torch.compile passes to a backend."""
