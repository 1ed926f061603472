"""The arguments of `compile`, `trace` and `save` that describe a module's inputs, in Torch-TensorRT's terms.

Each argument is checked. The result is a `ModuleInputs` (module `described`): inputs, profiles and dims, as in a manifest.
"""
