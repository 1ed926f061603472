"""Write calls that compute with integers and sizes, because the translations use float32, or do not round as
PyTorch and Python do."""
