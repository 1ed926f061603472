"""The partition step: decides which nodes become engines and which stay in PyTorch."""
