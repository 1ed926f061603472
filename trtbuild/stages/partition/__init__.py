"""The partition step decides which operators of a model become engines and which stay in PyTorch."""
