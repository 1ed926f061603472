"""Provide the functions of Torch-TensorRT's module ``torch_tensorrt.dynamo``: `trtbuild.compile`, `trtbuild.trace`, and
`Input`."""

from __future__ import annotations

from trtbuild.driver.in_program.arguments.inputs import Input as Input
from trtbuild.driver.in_program.compiling import compile as compile
from trtbuild.driver.in_program.tracing import trace as trace
