"""The calibrate step of a model with ``quantize:``. It runs user code, so it is in the folder of the trace.

It reads the model and the calibration data, finds the scales with NVIDIA's Model Optimizer, and returns the quantizers of
each layer. The trace attaches them to the model (`trtbuild.stages.trace.quantization.attaching`).
This folder uses `sources`, `discovery`, `quantization`, `user_code`, `examples`, `job` and, for `ProcessState`, `run`.
"""
