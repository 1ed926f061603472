"""Packages whose engines Triton can serve by itself. trtbuild serves all other packages in Triton's Python backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.driver.outputs.triton.repositories import (
    B,
    a_package_index,
    a_target,
    configurations,
    one_engine,
    part,
    profile,
    read_unchecked,
    tensor,
)
from trtbuild.driver.outputs.triton.native_support import unsupported_reason

Index = dict[str, Any]
X = tensor("float32", B, 4)


def with_target(**target: Any) -> Index:
    index = a_package_index()
    index["targets"]["hopper"] |= target
    return index


def with_second_target(**target: Any) -> Index:
    index = a_package_index()
    parts = index["targets"]["hopper"]["partitions"]
    index["targets"]["other"] = a_target(**{"sm": 89, "parts": parts["partitions"], "outs": parts["outputs"], **target})
    return index


def with_parts(parts: list[Any], outs: list[str], **changes: Any) -> Index:
    return a_package_index(
        **{
            "inputs": [{**X, "name": "x", "keyword": False}],
            "outputs": [{**X, "name": f"y{number}"} for number in range(len(outs))],
            "targets": {"hopper": a_target(90, parts, outs)},
            "profiles": [profile("p", x=([1, 4], [1, 4], [1, 4]))],
            **changes,
        }
    )


def test_triton_serves_engines_of_tensorrt_by_itself() -> None:
    assert unsupported_reason(read_unchecked(a_package_index())) is None
    assert unsupported_reason(read_unchecked(with_second_target())) is None


CASES: dict[str, tuple[Callable[[], Index], str]] = {
    "rtx": (lambda: with_target(toolchain="tensorrt-rtx"), "whose plans Triton's TensorRT backend does not accept"),
    "versions": (
        lambda: with_second_target(version="8.6.1"),
        "versions of TensorRT (10.3.0 and 8.6.1), but a server has one",
    ),
    "platforms": (
        lambda: with_second_target(platform="windows-x86_64"),
        "platforms (linux-x86_64 and windows-x86_64), but",
    ),
    "one SM": (lambda: with_second_target(sm=90), "targets hopper and other are both for SM 90"),
    "two targets for later GPUs": (
        lambda: {
            **with_second_target(),
            "targets": {
                name: {**target, "compatibility": "ampere_plus"}
                for name, target in with_second_target()["targets"].items()
            },
        },
        "are both for all later GPUs",
    ),
    "other partitions": (
        lambda: with_second_target(parts=[part("q", [("input:0", X)], [X])], outs=["q:0"]),
        "different partitions",
    ),
    "torch": (
        lambda: with_parts([part("a", [("input:0", X)], [X], "torch")], ["a:0"]),
        "partition a runs in PyTorch",
    ),
    "int64 before 10": (
        lambda: one_engine([tensor("int64", B, 4, name="ids")], [tensor("float32", B, 2, name="y")], version="8.6.1"),
        "has the type int64, which TensorRT 8.6.1 does not support",
    ),
    "float64": (
        lambda: one_engine([tensor("float64", B, 4, name="x")], [tensor("float32", B, 2, name="y")]),
        "has the type float64, which TensorRT 10.3.0 does not support",
    ),
    "an input that is an output": (
        lambda: with_parts([part("a", [("input:0", X)], [X])], ["a:0", "input:0"]),
        "an output of the model is also an input",
    ),
    "one value, two outputs": (
        lambda: with_parts([part("a", [("input:0", X)], [X])], ["a:0", "a:0"]),
        "an output of the model is also an input, a weight or another output",
    ),
    "a weight as an input": (
        lambda: with_parts([part("a", [("input:0", X), ("weight:3", X)], [X])], ["a:0"]),
        "partition a has a weight as an input",
    ),
    "no input": (lambda: with_parts([part("a", [], [X])], ["a:0"]), "partition a has no input"),
    "an unused input": (
        lambda: with_parts(
            [part("a", [("input:0", X)], [X])],
            ["a:0"],
            inputs=[{**X, "name": name, "keyword": False} for name in ("x", "unused")],
            profiles=[profile("p", x=([1, 4], [1, 4], [1, 4]), unused=([1, 4], [1, 4], [1, 4]))],
        ),
        "an input of the model is not used",
    ),
    "sizes that depend on data": (
        lambda: with_parts([part("a", [("input:0", X)], [tensor("int64", ["data", "n"], 2)])], ["a:0"]),
        "an output whose size depends on the values of its inputs",
    ),
    "scalars only": (
        lambda: with_parts([part("a", [("input:0", tensor("float32"))], [tensor("float32")])], ["a:0"]),
        "partition a has only scalar tensors",
    ),
    "no engine": (lambda: with_parts([], ["input:0"]), "it has no engine"),
}


@pytest.mark.parametrize("case", CASES)
def test_trtbuild_serves_a_package_that_triton_cannot_serve_by_itself(case: str) -> None:
    make, words = CASES[case]
    reason = unsupported_reason(read_unchecked(make()))
    assert reason is not None and words in reason
    (config,) = configurations(make()).values()
    assert (config.name, config.backend, config.platform) == ("det", "python", "")
