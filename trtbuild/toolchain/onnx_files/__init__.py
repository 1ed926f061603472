"""Read and edit serialized ONNX models in the protobuf wire format, because some engine workers have no onnx.

Uses no other folder of the toolchain.
"""
