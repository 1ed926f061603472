"""Modules that are quantized already: by PT2E (torchao), or with ``torch.fake_quantize_*``.

In: a module, or the program that torch.export made of it. Out: the same, in the form that TensorRT's quantization has. Zero
points are numbers of the program, because TensorRT accepts a quantizer by its zero point.
It may use `trace.job`, `trace.user_code` and `stages.program`.
"""
