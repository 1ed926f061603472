"""The code that works on models: the steps trace, lower, partition and convert, and verify, ONNX graphs and .pt2 files.

Its folders do not import one another, with two exceptions: most of them use `program`, and `graphs` uses `convert`.
"""
