"""Read and edit serialized ONNX models in the protobuf wire format: engine workers need not have onnx.

Uses no other room.
"""
