"""The list of GPUs and their free memory, with fakes of libcuda and NVML (`fake_nvidia.c`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import program
from trtbuild.driver.workers.environments import worker_environment

GIB = 1 << 30
#: Prints the SM and the free memory of each GPU. If there is no GPU, the program asks for the memory of GPU 0.
_PROGRAM = (
    "import json, sys; from trtbuild.toolchain.libraries import devices, gpu_memory; sms = devices.device_sms();"
    "print(json.dumps([list(sms), [gpu_memory.free_gpu_bytes(n) for n in range(len(sms) or 1)]]))"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libraries."""
    folder = tmp_path_factory.mktemp("nvidia")
    source = Path(__file__).with_name("fake_nvidia.c")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run([program("gcc"), "-shared", "-fPIC", "-o", folder / name, source], check=True, timeout=60)
    return folder


def _sms_and_free_bytes(environment: dict[str, str]) -> tuple[list[int], list[int | None]]:
    command = [sys.executable, "-c", _PROGRAM]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    sms, free = json.loads(process.stdout)
    return sms, free


def test_the_free_memory_of_each_visible_gpu_is_read(libraries: Path) -> None:
    # other tests in this process may have hidden all GPUs
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["LD_LIBRARY_PATH"] = str(libraries)
    assert _sms_and_free_bytes(environment) == ([90, 90, 90], [1 * GIB, 2 * GIB, 3 * GIB])
    assert _sms_and_free_bytes({**environment, "CUDA_VISIBLE_DEVICES": "2,0"}) == ([90, 90], [3 * GIB, 1 * GIB])
    assert _sms_and_free_bytes({**environment, "CUDA_VISIBLE_DEVICES": ""}) == ([], [None])
    assert _sms_and_free_bytes({**environment, "NVML_FAILS": "1"}) == ([90, 90, 90], [None] * 3)


def test_a_worker_sees_the_gpu_that_its_parent_chose(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    for gpu, free in ((0, 3 * GIB), (1, 1 * GIB)):
        assert _sms_and_free_bytes(worker_environment("engine", gpu)) == ([90], [free])


def test_the_memory_is_unknown_if_nvidias_libraries_cannot_be_loaded(tmp_path: Path) -> None:
    # These empty files hide the libraries of this machine.
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    assert _sms_and_free_bytes({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}) == ([], [None])
