"""Write single operators in the form that the ONNX exporter and TensorRT's parser accept."""
