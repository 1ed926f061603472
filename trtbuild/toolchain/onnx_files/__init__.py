"""Read and edit serialized ONNX models in the protobuf wire format, because some engine workers have no onnx.

This folder uses no other folder of the toolchain.
"""
