"""Pure: values in, values out. No torch, TensorRT, disk, clock, environment or network."""
