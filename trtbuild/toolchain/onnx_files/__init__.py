"""Read and edit serialized ONNX models in the protobuf wire format, because engine workers may not have onnx.

Uses no other folder of the toolchain.
"""
