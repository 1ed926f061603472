"""Write pooling, transposed convolution and interpolation, because TensorRT computes other elements at the edges."""
