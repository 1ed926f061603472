"""Uses the TensorRT flavours. Only this folder imports `tensorrt` or `tensorrt_rtx`.

The folders, from the lowest layer to the highest: `libraries` and `onnx_files`; `networks`, `running` and `tensorrt8`;
`compiling`.
"""
