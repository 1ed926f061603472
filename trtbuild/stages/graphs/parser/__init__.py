"""Write an ONNX model so that TensorRT's parser computes the results that ONNX defines.

`form` has the table: operator → the function that writes its nodes in another form, or refuses them. The other files have
these functions, and `graph` has what they know about the model.
"""
