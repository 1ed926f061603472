"""The functions `compile` and `trace`, and the class `Input`, with the same names as in ``torch_tensorrt.dynamo``."""

from __future__ import annotations

from trtbuild.driver.in_program.arguments.inputs import Input as Input
from trtbuild.driver.in_program.compiling import compile as compile
from trtbuild.driver.in_program.tracing import trace as trace
