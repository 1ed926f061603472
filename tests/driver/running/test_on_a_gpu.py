"""``run``, ``bench``, ``inspect`` and Triton's model on a GPU without torch, with the fakes of TensorRT 8.6 and CUDA."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.runtime.rigs import Rig, rig
from tests.runtime.test_on_a_gpu import Load, load
from trtbuild.driver.inspection import inspect
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.running.bench import bench
from trtbuild.driver.running.run import run
from trtbuild.driver.running.triton_model import TritonPythonModel
from trtbuild.driver.workers.stopwatch import Budget
from trtbuild.errors import CallRefused

__all__ = ["load", "rig"]


@pytest.fixture
def project(load: Load, tmp_path: Path) -> Path:
    """A directory with the package ``rows``. Each of its two engines computes 2v + 1."""
    load().close()
    return tmp_path


def test_run_copies_values_to_the_gpu_and_back(project: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(project / "x.npy", x)
    document = run(Request(project), "rows", inputs=["x=x.npy"], output="out.npz")
    with np.load(project / "out.npz") as output:
        np.testing.assert_array_equal(output["last"], (x * 2 + 1) * 2 + 1)
        np.testing.assert_array_equal(output["middle"], x * 2 + 1)
        np.testing.assert_array_equal(output["same"], x)
    assert (document.device, document.target, document.reference) == ("cuda:0", "hopper", False)
    assert (document.profile, document.dims) == ("small", {"batch": 3})
    assert document.outputs[0].max == 47.0


def test_run_rejects_a_shape_outside_of_every_profile(project: Path) -> None:
    with pytest.raises(CallRefused, match="batch"):
        run(Request(project), "rows", inputs=["x=random:33x4"])


def test_bench_waits_for_the_gpu_after_every_call(project: Path, rig: Rig) -> None:
    waits = []
    original = rig.memory.synchronize
    rig.memory.synchronize = lambda stream: (waits.append(stream), original(stream))  # type: ignore[method-assign]
    document = bench(Request(project), "rows", budget=Budget(0.0, 0.0))
    assert not document.reference and document.warnings == []
    assert [point.dims["batch"] for point in document.points] == [1, 2, 8, 16, 32]
    assert len(waits) >= sum(timed.count for timed in document.runs)


def test_device_memory_is_read_from_the_engines(project: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtbuild.toolchain.libraries import devices
    from trtbuild.toolchain.running import execution

    monkeypatch.setattr(execution, "load_library", lambda library: rig.library)
    monkeypatch.setattr(devices, "use_gpu_with_sm", lambda sm: devices.Device(0, sm, "H200", 1, "580"))
    memory = inspect(Request(project), "rows", memory=True).memory
    assert memory is not None
    assert (memory.device, memory.target, memory.because) == ("H200", "hopper", None)
    assert set(memory.contexts) == {"first", "second"}
    assert all(len(sizes) == 2 and min(sizes) >= 0 for sizes in memory.contexts.values())


class FakeTensor:
    """A fake of ``triton_python_backend_utils.Tensor``, whose values are in GPU or host memory."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def from_dlpack(cls, name: str, array: Any) -> FakeTensor:
        assert array.is_contiguous() and array.shape, name
        return cls(array)

    def is_cpu(self) -> bool:
        return isinstance(self.value, np.ndarray)

    def as_numpy(self) -> np.ndarray:
        assert self.is_cpu(), "Tensor is stored in GPU and cannot be converted to NumPy."
        return self.value  # type: ignore[no-any-return]

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


def test_triton_may_pass_tensors_on_the_gpu_or_on_the_host(
    project: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = ModuleType("triton_python_backend_utils")
    fake.Tensor = FakeTensor  # type: ignore[attr-defined]
    fake.InferenceResponse = lambda output_tensors, error=None: (output_tensors, error)  # type: ignore[attr-defined]
    fake.TritonError = str  # type: ignore[attr-defined]
    fake.get_input_tensor_by_name = lambda request, name: request  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    (project / "1").mkdir()
    (project / "rows").rename(project / "1/package")
    model = TritonPythonModel()
    model.initialize(
        {
            "model_repository": str(project),
            "model_version": "1",
            "model_instance_kind": "GPU",
            "model_instance_device_id": "0",
        }
    )
    value, data = rig.values(3, 4, stream=rig.stream())
    for tensor in (FakeTensor(value), FakeTensor(data)):
        ((outputs, error),) = model.execute([tensor])
        assert error is None
        np.testing.assert_array_equal(outputs[0].value.numpy(), (data * 2 + 1) * 2 + 1)
    ((_, error),) = model.execute([FakeTensor(np.zeros((33, 4), np.float32))])
    assert "33" in error
    model.finalize()
