"""Serialized ONNX models, read and edited in the protobuf wire format: engine workers need not have onnx.

Uses no other room.
"""
