"""Single operators, written in the way that the ONNX exporter and TensorRT's parser take."""
