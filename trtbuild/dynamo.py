"""The names of Torch-TensorRT's module ``torch_tensorrt.dynamo``: `trtbuild.compile` and `trtbuild.trace`."""

from __future__ import annotations

from trtbuild.driver.in_program.arguments.inputs import Input as Input
from trtbuild.driver.in_program.compiling import compile as compile
from trtbuild.driver.in_program.tracing import trace as trace
