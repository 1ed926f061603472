"""A package as a person reads it."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.screens.packages import inspected

INDEX: dict[str, Any] = {
    "model": "det",
    "precision": "float16",
    "reference": True,
    "inputs": [
        {"name": "image", "dtype": "float32", "shape": [["sym", 0], 3, ["mul", 32, ["sym", 1]]], "keyword": False},
        {"name": "scale", "dtype": "float16", "shape": [["sym", 0]], "keyword": True},
    ],
    "outputs": [{"name": "boxes", "dtype": "float32", "shape": [["sym", 0], ["add", ["sym", 1], 1]]}],
    "dims": [
        {"name": "batch", "min": 1, "max": 8, "multiple_of": 1},
        {"name": "height", "min": 32, "max": 640, "multiple_of": 32},
    ],
    "profiles": [
        {"name": "photo", "shapes": {"image": {"min": [1, 3, 32], "opt": [4, 3, 320], "max": [8, 3, 640]}}},
    ],
    "targets": {
        "ada": {
            "sm": 89,
            "toolchain": "tensorrt-rtx",
            "version": "1.7.1.116",
            "platform": "linux-x86_64",
            "partitions": {
                "partitions": [
                    {"name": "p0", "kind": "tensorrt"},
                    {"name": "p1", "kind": "torch", "reasons": {"aten.sort": "the parser refuses it"}},
                    {"name": "p2", "kind": "tensorrt"},
                ]
            },
            "engines": {"p0": "engines/p0", "p2": "engines/p2"},
        }
    },
    "files": {"engines/p0": {"size": 2048}, "engines/p2": {"size": 1024}},
}


def test_everything_that_is_in_a_package() -> None:
    lines = [click.unstyle(line) for line in inspected()({"path": "dist/det", "index": INDEX})]
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
        "target ada: SM 89, tensorrt-rtx 1.7.1.116, linux-x86_64",
        "  p0     engine     2.0 KiB",
        "  p1     PyTorch    aten.sort: the parser refuses it",
        "  p2     engine     1.0 KiB",
        "  total  2 engines  3.0 KiB",
    ]


def layer(name: str, module: str | None, operator: str | None) -> dict[str, Any]:
    return {"name": name, "type": "elementwise", "module": module, "operator": operator}


ENGINE: dict[str, Any] = {
    "target": "ada",
    "partition": "p0",
    "layers": [
        layer("n0", "encoder.0", "aten.linear.default"),
        layer("n0_1", "encoder.0", "aten.linear.default"),
        layer("n1", "", "aten.relu.default"),
        layer("odd", None, None),
    ],
    "trtexec": {
        "tool": "trtexec",
        "arguments": ["--onnx=p0.onnx", "--minShapes=i0:1x3,i1:scalar"],
        "differs": ["it has no flag for builder.strict_nans"],
    },
}


def beyond(found: dict[str, Any], **asked: bool) -> list[str]:
    """The lines below the index."""
    document = {"path": "dist/det", "index": INDEX, "engines": [ENGINE], **found}
    lines = [click.unstyle(line) for line in inspected(**asked)(document)]
    return lines[lines.index("  total  2 engines  3.0 KiB") + 1 :]


def test_layers_by_the_modules_that_they_come_from() -> None:
    assert beyond({}, layers=True) == [
        "engine p0 @ada",
        "  encoder.0    2 layers  n0 … n0_1  linear",
        "  (the model)  1 layer   n1         relu",
        "  (unknown)    1 layer   odd",
    ]


def test_the_trtexec_command_can_be_copied() -> None:
    assert beyond({}, trtexec=True) == [
        "engine p0 @ada",
        "  trtexec \\",
        "    --onnx=p0.onnx \\",
        "    --minShapes=i0:1x3,i1:scalar",
        "  # it has no flag for builder.strict_nans",
    ]
    assert beyond({"engines": [{**ENGINE, "trtexec": None}]}, trtexec=True)[1:] == [
        "  the source of this engine is not in this cache"
    ]


def test_engines_that_are_alike_are_told_once() -> None:
    other = {**ENGINE, "target": "blackwell"}
    assert beyond({"engines": [ENGINE, other]}, layers=True)[0] == "engine p0 @ada,blackwell"


def test_device_memory_by_profile() -> None:
    memory = {"target": "ada", "device": "RTX 4090", "because": None, "contexts": {"p0": [2048], "long": [4096]}}
    assert beyond({"memory": memory}) == [
        "device memory of a context, RTX 4090, target ada",
        "  p0    2.0 KiB",
        "  long  4.0 KiB",
    ]
    nothing = {"target": None, "contexts": {}, "because": "unknown without a GPU"}
    assert beyond({"memory": nothing}) == ["device memory: unknown without a GPU"]


def test_what_was_verified() -> None:
    nothing = {"verified": [], "void": None}
    assert beyond({"provenance": nothing}) == ["not verified: trtbuild verify"]
    assert beyond({"provenance": nothing, "source": "program"}) == ["not verified: trtbuild verify"]
    assert "trtbuild verify, on a GPU" in beyond({"provenance": nothing, "source": "onnx"})[0]
    assert "no other implementation to compare with" in beyond({"provenance": nothing, "source": "network"})[0]
    entry = {
        "by": "onnxruntime",
        "status": "right",
        "targets": ["ada", "blackwell"],
        "tolerance": 1e-5,
        "points": [{}, {}],
        "partitions": [{"error": 1e-8}, {"error": None}],
        "whole": {"error": 2.1e-7},
        "finished": "2026-01-31T12:00:00Z",
    }
    assert beyond({"provenance": {"verified": [entry], "void": None}}) == [
        "verified by onnxruntime: right @ada,blackwell, worst error 2.1e-07 within 1e-05 at 2 points, 2026-01-31T12:00:00Z"
    ]
    void = {"verified": [], "void": "provenance.json is about another package"}
    assert beyond({"provenance": void}) == ["not verified: provenance.json is about another package"]
