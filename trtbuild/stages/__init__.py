"""The code that works on models: the steps calibrate and trace (both in `trace`), lower, partition and convert,
comparisons (`verify`), ONNX models and TensorRT networks (`graphs`), graphs of torch.compile (`dynamo`), and .pt2 files.

The folders do not import one another, except that most of them use `program`, and `graphs` uses `convert`.
"""
