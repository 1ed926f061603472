"""Provide `compile` and `trace` of trtbuild under their names in ``torch_tensorrt.dynamo``, and `Input`."""

from __future__ import annotations

from trtbuild.driver.in_program.arguments.inputs import Input as Input
from trtbuild.driver.in_program.compiling import compile as compile
from trtbuild.driver.in_program.tracing import trace as trace
