"""An idle engine worker does not keep the memory of its last engine."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CHILD = """
import sys
from pathlib import Path
from trtbuild.toolchain.compiling import allocator

def resident_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS:"))

if sys.argv[1] == "tuned":
    allocator.return_large_buffers()
before = resident_mib()
# glibc stores buffers above a threshold outside its heap, and returns them to the system when they are freed. If the
# threshold is not constant, glibc raises it when such a buffer is freed, and stores later large buffers in the heap. It
# returns only the end of the heap. So the small buffers, which are still in use, keep the freed memory before them.
for _ in range(3):
    large, small = [], []
    for number in range(40):
        large.append(bytearray(b"x") * (4 << 20))
        small.append(bytearray(b"x") * 50_000)
    del large
held = resident_mib() - before
del small
if sys.argv[1] == "tuned":
    allocator.release_free_memory()
print(held, resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_returns_large_buffers_to_the_system() -> None:
    held_mib, remaining_mib = _memory_of_child("tuned")
    assert held_mib < 20 and remaining_mib < 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_glibc_alone_keeps_large_buffers() -> None:
    """Without `allocator`, the child keeps most of its 160 MiB of freed buffers."""
    held_mib, _ = _memory_of_child("untuned")
    assert held_mib > 100


def _memory_of_child(mode: str) -> tuple[int, int]:
    """Run `CHILD`. Returns by how many MiB its memory has grown: when the large buffers are freed, and when all are."""
    process = subprocess.run(
        [sys.executable, "-c", CHILD, mode], capture_output=True, text=True, timeout=60, check=True
    )
    held_mib, remaining_mib = map(int, process.stdout.split())
    return held_mib, remaining_mib
