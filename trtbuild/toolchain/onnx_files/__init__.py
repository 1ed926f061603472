"""Read and edit serialized ONNX models in the protobuf wire format: onnx need not be installed in engine workers.

Uses no other folder of the toolchain.
"""
