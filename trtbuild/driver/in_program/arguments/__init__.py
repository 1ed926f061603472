"""The arguments of `compile`, `trace` and `save` that describe a module's inputs, as Torch-TensorRT names them.

This folder checks the arguments and converts them to a `ModuleInputs`: inputs, profiles and dims, as in a manifest.
"""
