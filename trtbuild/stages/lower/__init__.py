"""The lower step: rewrites the operators of a traced program for TensorRT, in the requested precision."""
