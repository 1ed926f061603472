"""The calibrate step of a model with ``quantize:``. It runs user code, so it is in the folder of the trace.

The step finds the scales of a model's layers with NVIDIA's Model Optimizer, and returns the quantizers of each layer. The
trace attaches them to the model (`trtbuild.stages.trace.quantization.attaching`).
This folder uses `sources`, `discovery`, `quantization`, `user_code`, `examples`, `job` and, for `ProcessState`, `run`.
"""
