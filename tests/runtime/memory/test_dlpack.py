"""Reading and creating DLPack capsules, tested with PyTorch and NumPy."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from trtbuild.runtime.memory import dlpack


def _values(consumed: dlpack.CapsuleTensor) -> torch.Tensor:
    """Return the values of a consumed capsule, through a new capsule that PyTorch reads."""
    versioned = dlpack.create_capsule(
        consumed.address,
        consumed.shape,
        consumed.strides,
        consumed.dtype,
        (dlpack.CPU, 0),
        consumed.owner,
        versioned=True,
    )
    return torch.utils.dlpack.from_dlpack(versioned)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool],
)
@pytest.mark.parametrize("shape", [(2, 3), (), (4,), (0, 3)])
def test_reads_a_capsule_of_pytorch_and_pytorch_reads_a_new_capsule(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(int(np.prod(shape))).reshape(shape) % 2).to(dtype)
    consumed = dlpack.consume_capsule(tensor.__dlpack__())
    assert consumed.shape == shape and f"torch.{consumed.dtype}" == str(dtype) and consumed.device_type == dlpack.CPU
    assert consumed.address == tensor.data_ptr()
    torch.testing.assert_close(_values(consumed), tensor)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_reads_versioned_and_unversioned_capsules(version: tuple[int, int] | None) -> None:
    tensor = torch.arange(6).reshape(2, 3)
    consumed = dlpack.consume_capsule(tensor.__dlpack__(max_version=version))
    torch.testing.assert_close(_values(consumed), tensor)


def test_keeps_strides() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    consumed = dlpack.consume_capsule(tensor.__dlpack__())
    assert consumed.strides == (1, 3)
    torch.testing.assert_close(_values(consumed), tensor)


def test_the_memory_lives_as_long_as_the_owner() -> None:
    array = np.arange(1000, dtype=np.float32)
    alive = weakref.ref(array)
    consumed = dlpack.consume_capsule(array.__dlpack__())
    del array
    gc.collect()
    assert alive() is not None
    del consumed
    gc.collect()
    assert alive() is None


def test_a_consumed_capsule_releases_its_owner_after_use() -> None:
    class Owner:
        pass

    array = np.arange(4, dtype=np.float32)
    owner = Owner()
    alive = weakref.ref(owner)
    gc.collect()
    before = len(dlpack._LIVE_CAPSULES)
    for versioned in (False, True):
        capsule = dlpack.create_capsule(
            array.ctypes.data, (4,), None, "float32", (dlpack.CPU, 0), owner, versioned=versioned
        )
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        del capsule
        assert len(dlpack._LIVE_CAPSULES) == before + 1
        del tensor
        assert len(dlpack._LIVE_CAPSULES) == before
    del owner
    assert alive() is None


def test_an_unused_capsule_releases_its_owner() -> None:
    array = np.arange(4, dtype=np.float32)
    gc.collect()
    before = len(dlpack._LIVE_CAPSULES)
    capsule = dlpack.create_capsule(array.ctypes.data, (4,), None, "float32", (dlpack.CPU, 0), array, versioned=True)
    assert len(dlpack._LIVE_CAPSULES) == before + 1
    del capsule
    assert len(dlpack._LIVE_CAPSULES) == before


def test_a_capsule_can_be_read_only_once() -> None:
    capsule = torch.zeros(2).__dlpack__()
    dlpack.consume_capsule(capsule)
    with pytest.raises(ValueError, match="a used one"):
        dlpack.consume_capsule(capsule)


def test_rejects_objects_that_are_not_capsules() -> None:
    with pytest.raises(ValueError, match="not a DLPack capsule"):
        dlpack.consume_capsule(object())


def test_rejects_an_unsupported_element_type_and_leaves_the_capsule_usable() -> None:
    capsule = torch.zeros(2, dtype=torch.complex64).__dlpack__()
    with pytest.raises(ValueError, match="DLPack type 5, 64 bits"):
        dlpack.consume_capsule(capsule)
    assert torch.utils.dlpack.from_dlpack(capsule).dtype == torch.complex64


_LIVE_CAPSULES_AT_EXIT = """
import numpy as np, torch
from trtbuild.runtime.memory import dlpack
array = np.arange(4, dtype=np.float32)
def capsule(): return dlpack.create_capsule(array.ctypes.data, (4,), None, "float32", (1, 0), array, versioned=True)
class Loop: pass
loop = Loop()
loop.itself, loop.tensor = loop, torch.utils.dlpack.from_dlpack(capsule())
loop.taken, loop.capsule = dlpack.consume_capsule(capsule()), capsule()
import builtins; builtins.kept = loop  # freed last
print("end")
"""


def test_live_capsules_at_exit_are_harmless() -> None:
    process = subprocess.run([sys.executable, "-c", _LIVE_CAPSULES_AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout, process.stderr) == (0, "end\n", "")
