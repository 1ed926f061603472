"""The TensorRT flavours: the only folder that imports `tensorrt` or `tensorrt_rtx`.

Rooms, from the bottom: `libraries` and `onnx_files`; `networks`, `running` and `tensorrt8`; `compiling`.
"""
