"""Unchecked files of inputs: an invalid file is refused before anything is run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.core.model.shapes import ShapePlan, derive
from trtbuild.core.model.spec import Input, Model, Origin, Profile, ShapeRange, Source
from trtbuild.driver.verification.replay import point_of
from trtbuild.errors import UsageError
from trtbuild.stages.verify.inputs import read

INPUTS = (Input("x"), Input("ids", "int64"))
ROWS = Profile("rows", (("x", ShapeRange((1, 8), (4, 8), (8, 8))), ("ids", ShapeRange((3,), (3,), (3,)))))
MODEL = Model("net", Source("python", "net:Net"), INPUTS, (ROWS,), (), Origin("trtbuild.yaml", 1))
GOOD = {
    "x": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]},
    "ids": {"dtype": "I64", "shape": [3], "data_offsets": [64, 88]},
}
#: Values that JSON can hold, in the place of others.
ODD: tuple[Any, ...] = (
    *(None, True, 1, -1, 1.5, "a", "F32", "F8_E4M3", [], {}, [1], [2, 8], ["2", 8], [True, 8], [2.0, 8], [[2], 8]),
    *([-2, 8], [2**70, 8], [0, 256], [256, 0], [0, 2**70], [-5, 10], [0, "3"]),
)


def plan() -> ShapePlan:
    found, problems = derive(INPUTS, (), (ROWS,))
    assert found is not None, problems
    return found


def write(path: Path, header: Any) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 88)
    return path


def taken(path: Path) -> bool:
    """Whether the file is one of inputs; anything but an error of ours goes on."""
    try:
        point = point_of(path, MODEL, plan())
        x, ids = read(path, [(entry.name, entry.dtype) for entry in INPUTS])
    except UsageError as error:
        assert path.name in error.text
        return False
    assert point.sizes == (len(x),) and x.shape[1:] == (8,) and ids.dtype is torch.int64
    return True


def test_a_file_of_inputs(tmp_path: Path) -> None:
    assert taken(write(tmp_path / "in.safetensors", GOOD))


def test_no_header_is_believed(tmp_path: Path) -> None:
    file = tmp_path / "in.safetensors"
    headers: list[Any] = [*ODD]
    for odd in ODD:
        headers += [{**GOOD, name: odd} for name in GOOD]
        headers += [
            {**GOOD, name: {**GOOD[name], part: odd}} for name in GOOD for part in ("dtype", "shape", "data_offsets")
        ]
    refused = sum(not taken(write(file, header)) for header in headers)
    assert refused > 100 and refused < len(headers)  # some of them change nothing


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8, b"\xff" * 100, struct.pack("<Q", 2**63), struct.pack("<Q", 5) + b"[[[[[", b"garbage\n" * 50],
    ids=repr,
)
def test_what_is_no_file_of_inputs(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in").write_bytes(data)
    assert not taken(tmp_path / "in")


def test_a_header_that_nests_without_end(tmp_path: Path) -> None:
    for deep in (b"[" * 100_000, b'{"x":' * 100_000):
        assert not taken(write(tmp_path / "in", deep))
