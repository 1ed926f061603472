"""Random inputs for a model, and files of inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from tests.stages.verify.conftest import FunctionModule, convert_module
from trtbuild.core.model.verification import Point
from trtbuild.errors import UsageError
from trtbuild.stages.verify import inputs
from trtbuild.stages.verify.run import verify


@pytest.mark.parametrize(
    ("function", "end"),
    [
        (lambda m, x: m.table(x), 7),
        (lambda m, x: m.table(x.reshape(2, 2).to(torch.int32)), 7),
        (lambda m, x: m.table(x) + m.small(x), 3),
        (lambda m, x: m.table.weight[x], 7),
        (lambda m, x: m.table.weight[:, x], 5),
        (lambda m, x: m.table.weight.index_select(1, x), 5),
        (lambda m, x: m.table.weight.gather(0, x.reshape(4, 1)), 7),
        (lambda m, x: x + 1, 2),
        (lambda m, x: m.table(x * 0), 2),
    ],
)
def test_random_ids_end_at_the_size_of_the_smallest_table_or_at_2(function: object, end: int) -> None:
    module = FunctionModule(function, table=nn.Embedding(7, 5), small=nn.Embedding(3, 5))  # type: ignore[arg-type]
    converted = convert_module(module, [((4,), "int64")])
    assert inputs.integer_ends(converted.program) == [end]
    assert verify(converted.job, converted.read).whole.status == "right"


def test_equal_points_have_equal_inputs_and_different_points_do_not() -> None:
    names, shapes, ends = [("x", "float32"), ("n", "int64"), ("b", "bool")], [(50,), (50,), (50,)], [2, 100, 2]
    first, repeated, other = (
        inputs.random_inputs(names, shapes, Point(0, "min", (1,), seed), ends, {}) for seed in (5, 5, 6)
    )
    assert all(map(torch.equal, first, repeated)) and not any(map(torch.equal, first, other))
    assert int(first[1].min()) >= 0 and 2 < int(first[1].max()) < 100
    (zeros, *_) = inputs.random_inputs(names, shapes, Point(0, "min", (1,), 5, zeros=True), ends, {})
    assert 2 <= int((zeros == 0).sum()) <= 30 and not (first[0] == 0).any()


def test_values_are_in_the_ranges_of_their_inputs() -> None:
    names, shapes = [("x", "float32"), ("ids", "int64"), ("far", "float32")], [(500,), (500,), (500,)]
    ranges = {"ids": (100, 104), "x": (-1.0, 0.0), "far": (1.0, 2.0)}
    x, ids, far = inputs.random_inputs(names, shapes, Point(0, "random 2", (), 1, zeros=True), [2, 9, 2], ranges)
    assert set(ids.tolist()) == {100, 101, 102, 103, 104}  # without a range, the values would be 0 to 8
    assert x.min() >= -1 and x.max() <= 0 and 60 < int((x == 0).sum()) < 200
    assert far.min() >= 1 and far.max() <= 2  # zero is outside the range of `far`


def test_values_of_int8_do_not_overflow() -> None:
    (value,) = inputs.random_inputs([("x", "int8")], [(1000,)], Point(0, "min", (), 1), [50_000], {})
    assert int(value.min()) >= 0 and int(value.max()) > 100


def test_a_file_of_inputs_is_a_safetensors_file(tmp_path: Path) -> None:
    values = {
        "x": torch.randn(2, 3).to(torch.bfloat16),
        "ids": torch.arange(5),
        "none": torch.zeros(0, 4),
        "scalar": torch.tensor(True),
    }
    path = tmp_path / "inputs.safetensors"
    inputs.write_inputs(path, values, {"trtbuild.point": "{}"})
    assert all(torch.equal(values[name], value) for name, value in safetensors.torch.load_file(path).items())
    dtypes = [(name, str(value.dtype).removeprefix("torch.")) for name, value in values.items()]
    shapes = [value.shape for value in values.values()]
    assert all(map(torch.equal, inputs.read_inputs(path, dtypes, shapes), values.values()))
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match="no input 'y'"):
        inputs.read_inputs(path, [("y", "float32")], [(2, 3)])
    with pytest.raises(UsageError, match=r"torch\.bfloat16, but the model takes float32"):
        inputs.read_inputs(path, [("x", "float32")], [(2, 3)])
    with pytest.raises(UsageError, match=r"the shape \[2, 3\], but the model takes \[4, 3\]"):
        inputs.read_inputs(path, [("x", "bfloat16")], [(4, 3)])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.uint16, torch.float8_e5m2])
def test_a_state_of_a_type_that_the_format_lacks_is_stored_as_bytes(dtype: torch.dtype, tmp_path: Path) -> None:
    """A buffer of a state may have any type, other than an input of a manifest."""
    path, value = tmp_path / "inputs.safetensors", (torch.randn(2, 3) * 9).abs().to(dtype)
    inputs.write_inputs(path, {"state.x": value}, {})
    name = str(dtype).removeprefix("torch.")
    (read,) = inputs.read_inputs(path, [("state.x", name)], [(2, 3)])
    assert read.dtype is dtype and torch.equal(read.view(torch.uint8), value.view(torch.uint8))
    with pytest.raises(UsageError, match=rf"is torch\.uint8, but the model takes {name}"):
        inputs.read_inputs(path, [("state.x", name)], [(9, 9)])


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff" * 9, b"\x02\0\0\0\0\0\0\0[]", b"\x0a\0\0\0\0\0\0\0" + b'{"x": {}}x']
)
def test_rejects_files_that_are_not_inputs(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(UsageError, match="is not a file of inputs"):
        inputs.read_inputs(tmp_path / "bad", [("x", "float32")], [(2, 3)])
