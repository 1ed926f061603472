"""The model for Triton's Python backend, on a CPU, with a real package and a fake of the backend's module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import trtbuild
from tests.driver.conftest import Small
from tests.driver.outputs.triton.repositories import a_package_index, put_package, read_unchecked
from tests.store.memory_store import MemoryStore
from trtbuild.driver import outputs
from trtbuild.driver.outputs import triton


class FakeTensor:
    """A fake of ``triton_python_backend_utils.Tensor`` in host memory. `from_dlpack` accepts row-major tensors only."""

    def __init__(self, name: str, value: torch.Tensor) -> None:
        self._name, self._value = name, value

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> FakeTensor:
        value = torch.from_dlpack(tensor)
        if not value.is_contiguous():
            raise RuntimeError("DLPack tensor is not contiguous. Only contiguous DLPack tensors are supported.")
        assert value.dim() > 0, "Triton has no scalars"
        return cls(name, value)

    def name(self) -> str:
        return self._name

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> np.ndarray:
        array: np.ndarray = self._value.numpy()
        return array

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self._value.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._value.__dlpack_device__()


@dataclass
class FakeResponse:
    output_tensors: list[FakeTensor] = field(default_factory=list)
    error: Any = None


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("triton_python_backend_utils")
    fake.Tensor = FakeTensor  # type: ignore[attr-defined]
    fake.InferenceResponse = FakeResponse  # type: ignore[attr-defined]
    fake.TritonError = str  # type: ignore[attr-defined]
    fake.get_input_tensor_by_name = lambda request, name: request[name]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)


@pytest.fixture
def model(small: Small, backend: None) -> Iterator[Any]:
    """An instance of the class in the repository's ``model.py``, created as Triton creates it."""
    folder = small.project / "dist/repository/ranker"
    spec = importlib.util.spec_from_file_location("model_of_triton", folder / "1/model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    instance = module.TritonPythonModel()
    instance.initialize(
        {
            "model_repository": str(folder),
            "model_version": "1",
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )
    yield instance
    instance.finalize()


def a_request(rows: int) -> dict[str, FakeTensor]:
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))
    return {"x": FakeTensor("x", x), "scale": FakeTensor("scale", torch.tensor([2.0]))}


def test_responses_equal_the_results_of_the_package(small: Small, model: Any) -> None:
    requests = [a_request(3), a_request(16)]
    responses = model.execute(requests)
    with trtbuild.load(small.package, device="cpu") as loaded:
        for request, response in zip(requests, responses, strict=True):
            expected = loaded.module()(request["x"]._value, scale=torch.tensor(2.0))
            results = {tensor.name(): torch.from_numpy(tensor.as_numpy()) for tensor in response.output_tensors}
            assert list(results) == [entry.name for entry in loaded.outputs] and response.error is None
            torch.testing.assert_close(results["scores"], expected["scores"])
            torch.testing.assert_close(results["total"], expected["total"].reshape(1))


def test_only_the_request_that_does_not_fit_fails(model: Any) -> None:
    wrong, right = model.execute([a_request(17), a_request(1)])
    assert "17" in wrong.error and not wrong.output_tensors
    assert right.error is None and len(right.output_tensors) == 3


def test_the_repository_contains_the_package(small: Small) -> None:
    """Triton reads only the repository, so no text file in it names the project's path."""
    repository = small.project / "dist/repository"
    assert {path.name for path in repository.iterdir()} == {"ranker"}
    assert (repository / "ranker/1/package/index.json").read_bytes() == (small.package / "index.json").read_bytes()
    assert str(small.project) not in "".join(
        path.read_text() for path in (repository / "ranker").rglob("*") if path.suffix in (".pbtxt", ".py", ".json")
    )


def test_a_second_build_writes_no_file_of_the_repository(small: Small) -> None:
    document = small.command_line("build")
    assert not any(entry["written"] for entry in document["outputs"])


def test_files_of_the_old_model_are_removed_and_other_files_stay(small: Small, tmp_path: Path) -> None:
    """The first files are for engines that Triton itself runs, the second files for trtbuild's runtime."""
    store = MemoryStore()
    index = a_package_index()
    index["targets"]["hopper"]["engines"] = {}
    record = put_package(index, store)

    def digests(paths: Any) -> dict[str, str | None]:
        return dict.fromkeys(paths)

    def write(index: Any, record: Any) -> None:
        files = triton.model_files("r", read_unchecked(index), record)
        outputs.write_output(tmp_path, "triton", "r", files, store, digests, lambda _: None)

    write(index, record)
    assert (tmp_path / "r/det.p0/1/hopper.plan").is_file()
    (tmp_path / "r/det.p1/configs").mkdir()
    (tmp_path / "r/det.p1/configs/mine.pbtxt").write_text("# mine")
    (tmp_path / "r/detective").mkdir()
    (tmp_path / "r/detective/config.pbtxt").write_text("# another model's")
    index["targets"]["hopper"]["toolchain"] = "tensorrt-rtx"
    record = put_package(index, store)
    record = replace(record, outputs={**record.outputs, "names": store.put_bytes(b"{}")})
    write(index, record)
    remaining = {path.relative_to(tmp_path / "r").as_posix() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    assert remaining == {
        "det.p1/configs/mine.pbtxt",
        "detective/config.pbtxt",
        "det/config.pbtxt",
        "det/1/model.py",
        "det/1/trtbuild.json",
        "det/1/package/index.json",
        "det/1/package/names.json",
        "det/1/package/engines/hopper/p0.plan",
        "det/1/package/engines/hopper/p1.plan",
    }
