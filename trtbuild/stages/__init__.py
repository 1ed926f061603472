"""The code that works on models: the steps calibrate and trace (both in `trace`), lower, partition and convert,
comparisons (`verify`), ONNX models and TensorRT networks (`graphs`), graphs of torch.compile (`dynamo`), and .pt2 files.

Its folders do not import one another, with two exceptions: most of them use `program`, and `graphs` uses `convert`.
"""
