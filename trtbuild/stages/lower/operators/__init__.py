"""Write single operators in a form that the ONNX exporter and TensorRT's parser accept."""
