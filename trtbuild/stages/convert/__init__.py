"""The convert step: one partition's structure becomes an ONNX model with canonical names."""
