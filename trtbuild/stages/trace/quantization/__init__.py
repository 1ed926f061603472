"""Quantized modules: by the calibrate step, PT2E (torchao), NVIDIA's Model Optimizer, ``prepare_qat``, or with
``torch.fake_quantize_*``.

The functions of this folder change a module, or the program that torch.export made of it, to the form of TensorRT's
quantization. Zero points become numbers in the program, because TensorRT accepts only quantizers whose zero points are
known to be 0.
This folder may use `trace.job`, `trace.user_code` and `stages.program`.
"""
