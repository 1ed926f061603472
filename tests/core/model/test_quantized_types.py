"""The table of quantized types, by toolchain, release and GPU."""

from __future__ import annotations

import pytest

from trtbuild.core.model.quantized_types import QUANTIZED_TYPES, types_of, unsupported_reason
from trtbuild.core.model.spec import ToolchainName


@pytest.mark.parametrize(
    ("toolchain", "version", "sm", "types"),
    [
        ("tensorrt-rtx", "1.7.1.116", 75, ("int8",)),
        ("tensorrt-rtx", "1.7.1.116", 86, ("int8", "int4")),
        ("tensorrt-rtx", None, 89, ("int8", "float8e4m3fn", "float8e5m2", "int4")),
        ("tensorrt-rtx", "1.7.1.116", 120, QUANTIZED_TYPES),
        ("tensorrt", "8.6.0", 90, ("int8",)),
        ("tensorrt", "10.7.0", 100, ("int8", "float8e4m3fn", "float8e5m2", "int4")),
        ("tensorrt", "10.8", 100, QUANTIZED_TYPES),
    ],
)
def test_a_target_has_the_types_of_its_gpu_and_release(
    toolchain: ToolchainName, version: str | None, sm: int, types: tuple[str, ...]
) -> None:
    assert types_of(toolchain, version, sm) == types


def test_the_reason_names_what_is_too_old() -> None:
    assert unsupported_reason("float4e2m1", "tensorrt-rtx", "1.7.1", 89) == (
        "begins with SM 100, but the target is for SM 89"
    )
    assert unsupported_reason("float4e2m1", "tensorrt", "10.7", 100) == (
        "begins with tensorrt 10.8, but the target has 10.7"
    )
    assert unsupported_reason("int8", "tensorrt", "8.6.0", 90) is None
