"""Write pooling, transposed convolution and interpolation, because TensorRT's elements at the edges differ from
PyTorch's."""
