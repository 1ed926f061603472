"""Models that come as a graph of another kind than PyTorch's: an ONNX model, a recorded TensorRT network."""
