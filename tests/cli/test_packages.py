"""A package as a person reads it."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.packages import inspected

INDEX: dict[str, Any] = {
    "model": "det",
    "precision": "float16",
    "inputs": [{"name": "image", "dtype": "float32", "shape": [["sym", 0], 3, ["mul", 32, ["sym", 1]]]}],
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
    lines = [click.unstyle(line) for line in inspected({"path": "dist/det", "index": INDEX})]
    assert lines == [
        "dist/det: model det, float16",
        "inputs",
        "  image  float32  [batch, 3, height]",
        "outputs",
        "  boxes  float32  [batch, add(height, 1)]",
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
