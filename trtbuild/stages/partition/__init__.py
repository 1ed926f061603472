"""The partition step: which nodes become an engine, and which stay in PyTorch."""
