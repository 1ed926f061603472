"""Write calls that search, sort and index, because ONNX and TensorRT define their operators for fewer arguments."""
