"""Run version-compatible engines with TensorRT's lean and dispatch runtimes of other versions."""
