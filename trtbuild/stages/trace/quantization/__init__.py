"""Prepare quantized modules for the export. Their quantizers come from the calibrate step, PT2E (torchao), NVIDIA's Model
Optimizer or ``prepare_qat``, or are calls of ``torch.fake_quantize_*``.

The functions change a module, or the program that torch.export made of it, to the form of TensorRT's quantization.
This folder uses `job`, and no other part of the trace.
"""
