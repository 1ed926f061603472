"""Models whose source is an ONNX file or a recorded TensorRT network instead of a PyTorch module."""
