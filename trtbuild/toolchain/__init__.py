"""The TensorRT flavours: the only folder that imports `tensorrt` or `tensorrt_rtx`."""
