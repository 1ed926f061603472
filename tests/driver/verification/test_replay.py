"""Files of inputs for ``trtbuild verify --replay``: an invalid file is rejected before anything runs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, NamedDim, Origin, Profile, ShapeRange, Source
from trtbuild.driver.verification.replay import replayed_point
from trtbuild.errors import UsageError
from trtbuild.stages.verify.inputs import read_inputs

INPUTS = (Input("x"), Input("ids", "int64"))
ROWS = Profile("rows", (("x", ShapeRange((1, 8), (4, 8), (8, 8))), ("ids", ShapeRange((3,), (3,), (3,)))))
MODEL = Model("net", Source("python", "net:Net"), INPUTS, (ROWS,), (), Origin("trtbuild.yaml", 1))
GOOD = {
    "x": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]},
    "ids": {"dtype": "I64", "shape": [3], "data_offsets": [64, 88]},
}
#: JSON values that replace parts of the header. Some of them are valid.
REPLACEMENTS: tuple[Any, ...] = (
    *(None, True, 1, -1, 1.5, "a", "F32", "F8_E4M3", [], {}, [1], [2, 8], ["2", 8], [True, 8], [2.0, 8], [[2], 8]),
    *([-2, 8], [2**70, 8], [0, 256], [256, 0], [0, 2**70], [-5, 10], [0, "3"]),
)


def plan() -> ShapePlan:
    shapes, problems = derive(INPUTS, (), (ROWS,))
    assert shapes is not None, problems
    return shapes


def write(path: Path, header: Any, data_bytes: int = 88) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * data_bytes)
    return path


def is_accepted(path: Path) -> bool:
    """Whether `path` is a valid file of inputs. An exception other than `UsageError` fails the test."""
    try:
        point = replayed_point(path, MODEL, plan())
        shapes = plan().input_shapes(point.sizes)
        x, ids = read_inputs(path, [(entry.name, entry.dtype) for entry in INPUTS], shapes)
    except UsageError as error:
        assert path.name in error.text
        return False
    assert point.sizes == (len(x),) and x.shape[1:] == (8,) and ids.dtype is torch.int64
    return True


def test_accepts_a_file_of_inputs(tmp_path: Path) -> None:
    assert is_accepted(write(tmp_path / "in.safetensors", GOOD))


@pytest.mark.parametrize(("rows", "is_a_multiple"), [(2, True), (3, False)])
def test_sizes_are_multiples_of_the_dims_unit(tmp_path: Path, rows: int, is_a_multiple: bool) -> None:
    size = 4 * 8 * rows
    file = write(tmp_path / "in", {"x": {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, size]}}, size)
    x = Input("x")
    profile = Profile("rows", (("x", ShapeRange((2, 8), (4, 8), (8, 8))),))
    shapes, problems = derive((x,), (NamedDim("batch", (("x", 0),), 2),), (profile,))
    assert shapes is not None, problems
    model = Model("net", Source("python", "net:Net"), (x,), (profile,), (), Origin("trtbuild.yaml", 1))
    if is_a_multiple:
        assert replayed_point(file, model, shapes).sizes == (rows,)
        return
    with pytest.raises(UsageError, match=r"shape \[3, 8\], which the model does not accept") as caught:
        replayed_point(file, model, shapes)
    assert caught.value.hint == "it accepts [batch, 8], batch a multiple of 2"


def test_every_changed_header_is_rejected_or_valid(tmp_path: Path) -> None:
    file = tmp_path / "in.safetensors"
    headers: list[Any] = [*REPLACEMENTS]
    for value in REPLACEMENTS:
        headers += [{**GOOD, name: value} for name in GOOD]
        headers += [
            {**GOOD, name: {**GOOD[name], part: value}} for name in GOOD for part in ("dtype", "shape", "data_offsets")
        ]
    rejected = sum(not is_accepted(write(file, header)) for header in headers)
    assert rejected > 100 and rejected < len(headers)  # some changes keep a header valid


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8, b"\xff" * 100, struct.pack("<Q", 2**63), struct.pack("<Q", 5) + b"[[[[[", b"garbage\n" * 50],
    ids=repr,
)
def test_rejects_files_that_are_not_inputs(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in").write_bytes(data)
    assert not is_accepted(tmp_path / "in")


def test_rejects_a_deeply_nested_header(tmp_path: Path) -> None:
    for deep in (b"[" * 100_000, b'{"x":' * 100_000):
        assert not is_accepted(write(tmp_path / "in", deep))
