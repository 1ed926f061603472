"""Tensors in host memory: files, random values, copies to torch tensors on the CPU, and summaries."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trtbuild.core.values.value_ranges import TYPE_LIMITS, value_range
from trtbuild.driver.running.device import copy_to_memory
from trtbuild.driver.running.documents import TensorSummary
from trtbuild.driver.running.host_tensors import HostTensor, random_tensor, read, write
from trtbuild.driver.running.run import _summary
from trtbuild.errors import UsageError

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_trtbuild_and_the_library_read_the_safetensors_files_of_each_other(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    values = random_tensor(dtype, shape, 3)
    written, by_library = tmp_path / "written.safetensors", tmp_path / "by_library.safetensors"
    write(written, {"x": values, "y": values})
    loaded = load_file(written)
    assert loaded["x"].dtype == getattr(torch, dtype) and tuple(loaded["x"].shape) == shape
    save_file(loaded, by_library)
    read_back = read(by_library)["y"]
    assert (read_back.dtype, read_back.shape) == (dtype, shape)
    np.testing.assert_array_equal(read_back.data, values.data)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_numpy_files_are_read_back(suffix: str, tmp_path: Path) -> None:
    path, values = tmp_path / f"x{suffix}", random_tensor("float16", (2, 3), 0)
    write(path, {"x": values})
    (read_back,) = read(path).values()
    assert read_back.dtype == "float16"
    np.testing.assert_array_equal(read_back.data, values.data)


def test_values_of_another_byte_order_are_converted(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=">i4"))
    read_back = read(tmp_path / "x.npy")[""]
    assert read_back.dtype == "int32" and read_back.data.tolist() == [0, 1, 2] and read_back.data.dtype.isnative


def test_bfloat16_values_are_stored_as_their_bits() -> None:
    tensor = HostTensor("bfloat16", np.array([0x3F80, 0xC000], dtype=np.uint16))
    assert tensor.as_floats().tolist() == [1.0, -2.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_on_the_cpu_values_become_a_tensor_of_torch(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(dtype, shape, 5)
    tensor.data.flags.writeable = False  # like values that are read from files
    on_cpu = copy_to_memory(None, tensor)
    assert on_cpu.dtype == getattr(torch, dtype) and tuple(on_cpu.shape) == shape
    np.testing.assert_array_equal(on_cpu.double().numpy(), np.asarray(tensor.as_floats(), dtype=np.float64))


@pytest.mark.parametrize("dtype", TYPE_LIMITS)
def test_random_values_are_in_the_range_of_the_input(dtype: str) -> None:
    small = random_tensor(dtype, (2000,), 0, value_range(dtype, 3, 9)).as_floats().astype(np.float64)  # type: ignore[arg-type]
    assert 3 <= small.min() < 3.1 and 8.9 < small.max() <= 9
    if isinstance(TYPE_LIMITS[dtype][0], int):
        assert sorted(set(small.tolist())) == [3, 4, 5, 6, 7, 8, 9]
    whole = random_tensor(dtype, (100,), 0, TYPE_LIMITS[dtype]).as_floats()
    assert np.isfinite(whole).all() and random_tensor(dtype, (), 0, TYPE_LIMITS[dtype]).shape == ()


def test_random_values_follow_from_the_seed_and_integers_are_0_or_1() -> None:
    first, same, different = (random_tensor("int64", (50,), seed).data for seed in (1, 1, 2))
    assert (first == same).all() and (first != different).any() and set(first.tolist()) == {0, 1}


def test_rejects_pickled_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"is not a valid \.npy file"):
        read(tmp_path / "x.npy")


def _npz() -> bytearray:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.arange(1000.0))
    return bytearray(stream.getvalue())


def _with_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.npz", bytes(_npz()[:400])),
        ("altered.npz", bytes(_npz()[:80] + b"\xff" * 40 + _npz()[120:])),
        ("huge.npy", _with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,)}\n")),
        ("header.npy", _with_header("{'descr': '<f4', 'fortran_order'\n")),
    ],
)
def test_rejects_damaged_numpy_files(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError, match=rf"is not a valid \{path.suffix} file"):
        read(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"{]",
        (2).to_bytes(8, "little") + b"[]",
        *(
            len(text).to_bytes(8, "little") + text
            for text in [
                json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode(),
                json.dumps({"x": {"dtype": "F99", "shape": [], "data_offsets": [0, 0]}}).encode(),
                json.dumps({"x": {"dtype": "F32"}}).encode(),
                json.dumps({"x": {"dtype": "U8", "shape": [4], "data_offsets": [-4, 0]}}).encode(),
            ]
        ),
    ],
)
def test_rejects_damaged_safetensors_files(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"is not a valid \.safetensors file"):
        read(path)


def test_rejects_bfloat16_in_a_numpy_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bfloat16"):
        write(tmp_path / "x.npz", {"x": random_tensor("bfloat16", (2,), 0)})


def test_a_summary_is_computed_from_finite_values() -> None:
    odd = np.array([1.0, np.nan, -np.inf, 3.0], dtype=np.float16)
    assert _summary("x", HostTensor("float16", odd)) == TensorSummary(
        name="x", dtype="float16", shape=(4,), min=1.0, max=3.0, mean=2.0, nan=1, inf=1
    )
    scalar = _summary("x", HostTensor("bfloat16", np.array(0xC000, dtype=np.uint16)))
    assert (scalar.min, scalar.max, scalar.shape) == (-2.0, -2.0, ())
    assert _summary("x", HostTensor("bool", np.array([True, False]))).mean == 0.5
    largest = 2**63 - 1
    assert _summary("x", HostTensor("int64", np.array([largest, 0]))).max == largest
    assert _summary("x", HostTensor("float32", np.zeros((0, 2), np.float32))).min is None


def test_an_npz_file_has_tensors_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    tensors = {name: random_tensor("float32", (2, number), number) for number, name in enumerate(["file", "y"])}
    write(path, tensors)
    assert {name: tensor.shape for name, tensor in read(path).items()} == {"file": (2, 0), "y": (2, 1)}
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["y"], tensors["y"].data)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex32", "int4"])
@pytest.mark.parametrize("value_range", [None, (0.0, 1.0)])
def test_random_values_of_a_dtype_that_numpy_does_not_have_are_refused(
    dtype: str, value_range: tuple[float, float] | None
) -> None:
    with pytest.raises(UsageError, match=f"random values of {dtype} are not supported"):
        random_tensor(dtype, (2,), 0, value_range)
