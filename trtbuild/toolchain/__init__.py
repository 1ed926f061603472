"""Uses the TensorRT flavours, `tensorrt` and `tensorrt-rtx`. No other folder imports their Python modules.

The folders, from the lowest layer to the highest: `libraries` and `onnx_files`; `networks`, `running` and `tensorrt8`;
`compiling`.
"""
