"""The result of ``trtbuild inspect`` as text.

`a_cut_entry` returns the results of a verification of one cut. A cut is one way to divide a model into partitions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from tests.core.verified_values import WORST, a_cut_entry, a_partition_entry, a_whole_entry
from trtbuild.cli.screens.packages import package_screen
from trtbuild.core.engines.engine_layers import Layer
from trtbuild.core.packages.package_index import SCHEMA
from trtbuild.core.packages.provenance import Provenance
from trtbuild.core.partition.partitions import SCHEMA as PARTITIONS
from trtbuild.core.values.codec import encode
from trtbuild.driver.inspection.documents import (
    DeviceMemory,
    InspectedEngine,
    Inspection,
    TargetLibrary,
    TrtexecCommand,
)

SHA = "0" * 64


def tensor(name: str, dtype: str, *shape: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape), **more}


def part(name: str, kind: str, reads: str, **reasons: str) -> dict[str, Any]:
    rows = {"dtype": "float32", "shape": [["sym", 0]]}
    fields = {"graph": SHA, "weights": [], "outputs": [rows], "calls": []}
    return {"name": name, "kind": kind, "inputs": [[reads, rows]], "reasons": reasons, **fields}


BATCH, HEIGHT = ["sym", 0], ["mul", 32, ["sym", 1]]

INDEX: dict[str, Any] = {
    "schema": SCHEMA,
    "model": "det",
    "precision": "float16",
    "reference": True,
    "inputs": [
        tensor("image", "float32", BATCH, 3, HEIGHT, keyword=False),
        tensor("scale", "float16", BATCH, keyword=True),
    ],
    "outputs": [tensor("boxes", "float32", BATCH, ["add", ["sym", 1], 1])],
    "output_tree": {"kind": "tensor", "index": 0},
    "dims": [
        {"name": "batch", "min": 1, "max": 8, "multiple_of": 1},
        {"name": "height", "min": 32, "max": 640, "multiple_of": 32},
    ],
    "profiles": [
        {
            "name": "photo",
            "shapes": {
                "image": {"min": [1, 3, 32], "opt": [4, 3, 320], "max": [8, 3, 640]},
                "scale": {"min": [1], "opt": [4], "max": [8]},
            },
        },
    ],
    "targets": {
        "ada": {
            "sm": 89,
            "toolchain": "tensorrt-rtx",
            "version": "1.7.1.116",
            "compatibility": "exact",
            "platform": "linux-x86_64",
            "partitions": {
                "schema": PARTITIONS,
                "partitions": [
                    part("p0", "tensorrt", "input:0"),
                    part("p1", "torch", "p0:0", **{"aten.sort": "the parser refuses it"}),
                    part("p2", "tensorrt", "p1:0"),
                ],
                "outputs": ["p2:0"],
                "programs": {SHA: SHA},
            },
            "engines": {"p0": "engines/p0", "p2": "engines/p2"},
        }
    },
    "weights": {},
    "files": {
        "engines/p0": {"sha256": SHA, "size": 2048},
        "engines/p2": {"sha256": SHA, "size": 1024},
        f"torch/{SHA[:32]}.pt2": {"sha256": SHA, "size": 1},
    },
}


def inspection(**more: Any) -> Inspection:
    ada = TargetLibrary(target="ada", library="tensorrt-rtx", version="1.7.1.116", because=None)
    empty = {"source": None, "engines": [], "memory": None, "provenance": Provenance()}
    defaults = {"index": INDEX, "libraries": [ada], **empty}
    return Inspection(path="dist/det", **{**defaults, **more})


def test_all_contents_of_a_package_are_listed() -> None:
    lines = [click.unstyle(line) for line in package_screen()(inspection())]
    assert lines == [
        "dist/det: model det, float16, with its reference program",
        "inputs",
        "  image  float32  [batch, 3, height]",
        "  scale  float16  [batch]             keyword",
        "outputs",
        "  boxes  float32  [batch, height//32+1]",
        "dims",
        "  batch   1 to 8",
        "  height  32 to 640, multiples of 32",
        "profiles",
        "  photo  image  min [1, 3, 32]  opt [4, 3, 320]  max [8, 3, 640]",
        "  photo  scale  min [1]         opt [4]          max [8]",
        "target ada: SM 89, tensorrt-rtx 1.7.1.116, linux-x86_64",
        "  p0     engine     2.0 KiB",
        "  p1     PyTorch    aten.sort: the parser refuses it",
        "  p2     engine     1.0 KiB",
        "  total  2 engines  3.0 KiB",
        "not verified: trtbuild verify",
    ]


@pytest.mark.parametrize(
    ("fields", "library", "lines"),
    [
        (
            {"version_compatible": True},
            TargetLibrary(target="ada", library="tensorrt_dispatch", version="10.16.1.11", because=None),
            [
                "target ada: SM 89, tensorrt 8.6.0, version-compatible, linux-x86_64",
                "  runs here with tensorrt_dispatch 10.16.1.11",
            ],
        ),
        (
            {"version_compatible": True, "exclude_lean_runtime": True},
            TargetLibrary(target="ada", library="tensorrt", version="8.6.0", because=None),
            ["target ada: SM 89, tensorrt 8.6.0, version-compatible without the lean runtime, linux-x86_64"],
        ),
        (
            {},
            TargetLibrary(target="ada", library=None, version=None, because="it needs tensorrt 8.6.0"),
            [
                "target ada: SM 89, tensorrt 8.6.0, linux-x86_64",
                "  no library here runs these engines: it needs tensorrt 8.6.0",
            ],
        ),
    ],
)
def test_the_library_that_runs_the_engines_here_is_named(
    fields: dict[str, bool], library: TargetLibrary, lines: list[str]
) -> None:
    """There is no further line if the library that built the engines also runs them."""
    ada = {**INDEX["targets"]["ada"], "toolchain": "tensorrt", "version": "8.6.0", **fields}
    shown = package_screen()(inspection(index={**INDEX, "targets": {"ada": ada}}, libraries=[library]))
    shown = [click.unstyle(line) for line in shown]
    start = shown.index(lines[0])
    assert shown[start : start + len(lines) + 1] == [*lines, "  p0     engine     2.0 KiB"]


COMMAND = TrtexecCommand(
    tool="trtexec",
    arguments=["--onnx=p0.onnx", "--minShapes=i0:1x3,i1:scalar"],
    differs=["the tool has no flag for builder.strict_nans"],
    text="",
)

ENGINE = InspectedEngine(
    target="ada",
    partition="p0",
    plan="engines/p0",
    size=2048,
    sha256=SHA,
    layers=[
        Layer("n0", "elementwise", "encoder.0", "aten.linear.default"),
        Layer("n0_1", "elementwise", "encoder.0", "aten.linear.default"),
        Layer("n1", "elementwise", "", "aten.relu.default", ("int8", "float32"), ("float16",)),
        Layer("odd", "elementwise", None, None),
    ],
    weights={"float32": 1024, "int8": 32768},
    onnx=None,
    trtexec=COMMAND,
)


def lines_after_index(*options: str, **changes: Any) -> list[str]:
    """Return the lines after those about the index."""
    document = inspection(**{"engines": [ENGINE], **changes})
    lines = [click.unstyle(line) for line in package_screen(**dict.fromkeys(options, True))(document)]
    return lines[lines.index("  total  2 engines  3.0 KiB") + 1 :]


def test_layers_are_listed_by_module() -> None:
    assert lines_after_index("layers")[1:] == [
        "engine p0 @ada",
        "  weights: 33.0 KiB, int8 32.0 KiB, float32 1.0 KiB",
        "  encoder.0    2 layers  n0 … n0_1  linear",
        "  (the model)  1 layer   n1         relu    float32, int8 → float16",
        "  (unknown)    1 layer   odd",
    ]


def test_types_that_a_plan_does_not_name_are_unknown() -> None:
    lines = lines_after_index("layers", engines=[replace(ENGINE, weights=None)])
    assert lines[2] == "  types: unknown, because this plan does not name them"


def test_the_trtexec_command_can_be_copied() -> None:
    assert lines_after_index("trtexec")[1:] == [
        "engine p0 @ada",
        "  trtexec \\",
        "    --onnx=p0.onnx \\",
        "    --minShapes=i0:1x3,i1:scalar",
        "  # the tool has no flag for builder.strict_nans",
    ]
    assert lines_after_index("trtexec", engines=[replace(ENGINE, trtexec=None)])[2:] == [
        "  the source of this engine is not in this cache"
    ]


def test_equal_engines_share_one_line() -> None:
    other = replace(ENGINE, target="blackwell")
    assert lines_after_index("layers", engines=[ENGINE, other])[1] == "engine p0 @ada,blackwell"


def test_device_memory_is_listed_by_engine() -> None:
    memory = DeviceMemory(target="ada", device="RTX 4090", because=None, contexts={"p0": [2048], "long": [4096]})
    assert lines_after_index(memory=memory)[:-1] == [
        "device memory of a context, RTX 4090, target ada",
        "  p0    2.0 KiB",
        "  long  4.0 KiB",
    ]
    unknown = DeviceMemory(target=None, contexts={}, because="unknown without a GPU")
    assert lines_after_index(memory=unknown)[:-1] == ["device memory: unknown without a GPU"]


def test_verification_is_summarized() -> None:
    assert lines_after_index() == ["not verified: trtbuild verify"]
    assert lines_after_index(source="program") == ["not verified: trtbuild verify"]
    assert "run trtbuild verify on a GPU" in lines_after_index(source="onnx")[0]
    assert "no other implementation to compare with" in lines_after_index(source="network")[0]
    entry = a_cut_entry(
        targets=["ada", "blackwell"],
        points=[WORST] * 2,
        partitions=[a_partition_entry(error=1e-8), a_partition_entry(error=None)],
        whole=a_whole_entry(error=2.1e-7),
        finished="2026-01-31T12:00:00Z",
    )
    assert lines_after_index(provenance=Provenance((encode(entry),))) == [
        "verified by onnxruntime: right @ada,blackwell, worst error 2.1e-07 within 1e-05 at 2 points, 2026-01-31T12:00:00Z"
    ]
    void = Provenance(void="provenance.json is about another package")
    assert lines_after_index(provenance=void) == ["not verified: provenance.json is about another package"]
