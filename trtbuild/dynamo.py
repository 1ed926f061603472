"""Provide `compile`, `trace` and `Input` of trtbuild under the names that Torch-TensorRT has in
``torch_tensorrt.dynamo``."""

from __future__ import annotations

from trtbuild.driver.in_program.arguments.inputs import Input as Input
from trtbuild.driver.in_program.compiling import compile as compile
from trtbuild.driver.in_program.tracing import trace as trace
