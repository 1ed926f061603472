"""Workspaces (activation memory) have TensorRT's alignment, even if the alignment of the allocator is smaller."""

from __future__ import annotations

import pytest

from tests.runtime.rigs import Rig
from trtbuild.runtime.engines.workspaces import allocate_aligned


@pytest.mark.parametrize("size_bytes", [0, 1, 512, 1536, (1 << 20) + 256])
def test_the_address_is_a_multiple_of_512_and_all_bytes_are_allocated(rig: Rig, size_bytes: int) -> None:
    workspace = rig.workspaces.workspace_for(rig.stream())
    with rig.memory.on_device():
        workspace.reserve(size_bytes)
        # the allocator itself aligns its blocks only to 256 bytes
        assert workspace.array is not None and workspace.array.data_ptr() % 512 == 256
    assert workspace.address and workspace.address % 512 == 0
    assert workspace.size_bytes >= max(size_bytes, 1)
    rig.gpu.check(workspace.address, workspace.size_bytes, "the workspace")


def test_grows_only_if_it_is_too_small(rig: Rig) -> None:
    workspace = rig.workspaces.workspace_for(rig.stream())
    with rig.memory.on_device():
        workspace.reserve(2048)
        address = workspace.address
        workspace.reserve(1024)
        assert workspace.address == address
        workspace.reserve(4096)
    assert workspace.size_bytes == 4096
    rig.gpu.check(workspace.address, 4096, "the workspace")


def test_allocate_aligned_returns_memory_with_the_requested_alignment(rig: Rig) -> None:
    with rig.memory.on_device():
        for alignment in (1, 256, 512, 4096):
            array, address = allocate_aligned(rig.memory, 100, alignment, rig.stream())
            assert address % alignment == 0
            assert array.data_ptr() <= address
            rig.gpu.check(address, 100, "the memory")
