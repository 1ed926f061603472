"""The arguments of `compile`, `trace` and `save` that describe a module's inputs, in Torch-TensorRT's terms.

They are checked, and become the inputs, profiles and dims of a manifest's model (`described`).
"""
