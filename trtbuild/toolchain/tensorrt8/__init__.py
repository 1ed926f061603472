"""What TensorRT before 9 and other releases without strong types need: 32 bit integers, casts of halves, precision.

Uses `onnx_files`.
"""
