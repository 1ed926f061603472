"""``trtbuild run`` on a real package, with its reference program."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.driver.conftest import Small
from tests.runtime.memory.test_memory import HostMemory
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.running.device import PackageOnDevice
from trtbuild.driver.running.run import run
from trtbuild.errors import CallRefused, NoFittingTarget, UsageError
from trtbuild.runtime.packages.package import open_package


@pytest.fixture
def request_(small: Small) -> Request:
    return Request(small.project)


def eager_results(small: Small, x: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """The results of the project's module in PyTorch."""
    spec = importlib.util.spec_from_file_location("nets_of_small", small.project / "nets.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    with torch.no_grad():
        results = module.build()(torch.from_numpy(x), scale=torch.from_numpy(scale))
    return {name: value.numpy() for name, value in results.items()}


def test_outputs_equal_those_of_the_module(small: Small, request_: Request, tmp_path: Path) -> None:
    x, scale = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32), np.array(2.0, dtype=np.float32)
    np.savez(tmp_path / "in.npz", x=x, scale=scale)
    out = str(tmp_path / "out.npz")
    document = run(request_, "ranker", inputs=[str(tmp_path / "in.npz")], device="cpu", output=out)
    expected = eager_results(small, x, scale)
    with np.load(out) as results:
        assert set(results.files) == {"scores", "best", "total"}
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5)
    assert (document.reference, document.target, document.device) == (True, None, "cpu")
    assert (document.profile, document.dims) == ("rows", {"batch": 3})
    total = next(entry for entry in document.outputs if entry.name == "total")
    assert (total.dtype, total.shape) == ("float32", ())
    assert total.min == total.max == pytest.approx(float(expected["total"]), rel=1e-5)


def test_missing_inputs_are_random_at_opt_and_follow_from_the_seed(request_: Request) -> None:
    first, same, different = (run(request_, "ranker", device="cpu", seed=seed) for seed in (0, 0, 1))
    assert [entry.shape for entry in first.inputs] == [(4, 8), ()]
    assert first.outputs == same.outputs != different.outputs


def test_the_profile_and_min_opt_or_max_may_be_given(request_: Request) -> None:
    largest = run(request_, "ranker", device="cpu", profile="rows", which="max")
    assert largest.inputs[0].shape == (16, 8)
    assert run(request_, "ranker", device="cpu", profile="single").profile == "single"


def test_a_package_may_be_named_by_its_directory(small: Small, request_: Request, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    run(request_, "dist/ranker", inputs=["x=random:2x8"], device="cpu", output=str(out))
    assert load_file(out)["scores"].shape == (2, 4)
    served = small.project / "dist/repository/ranker/1/package"
    assert run(request_, str(served), device="cpu").model == "ranker"


def test_inputs_that_do_not_fit_have_the_error_of_a_call(request_: Request) -> None:
    with pytest.raises(CallRefused, match=r"17.*1 to 16"):
        run(request_, "ranker", inputs=["x=random:17x8"], device="cpu")
    with pytest.raises(CallRefused, match="axis 1 is 9, and must be 8"):
        run(request_, "ranker", inputs=["x=random:2x9"], device="cpu")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": ["y=random"]}, "no input 'y'"),
        ({"inputs": ["x=random", "x=random:2x8"]}, "gives 'x' twice"),
        ({"inputs": ["x=random:2,8"]}, "'2,8' is not a shape"),
        ({"inputs": ["x=gone.npy"]}, "gone.npy cannot be read: no such file"),
        ({"inputs": ["x=gone.txt"]}, "is not a file of tensors"),
        ({"inputs": ["nets.py"]}, "is not a file of tensors"),
        ({"inputs": ["x="]}, "--input x= names no file"),
        ({"inputs": ["x=gone.pt"]}, "is not a file of tensors"),
        ({"profile": "row"}, "no profile is called 'row'"),
        ({"output": "out.txt"}, "is not a file of tensors"),
        ({"output": "gone/out.npz"}, "cannot be written"),
        ({"output": "out.npy"}, "can hold one tensor, and there are 3"),
    ],
)
def test_rejects_invalid_arguments(request_: Request, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(request_, "ranker", device="cpu", **arguments)  # type: ignore[arg-type]


def test_the_error_without_a_gpu_suggests_the_cpu(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.toolchain.libraries.devices.device_sms", lambda: ())
    with pytest.raises(NoFittingTarget, match="no GPU was found") as caught:
        run(request_, "ranker")
    assert "--device cpu" in str(caught.value.hint)


def test_the_command_prints_a_document_or_a_text(small: Small, tmp_path: Path) -> None:
    document = small.command_line("run", "ranker", "--device", "cpu", "--input", "x=random:2x8", "--seed", "3")
    assert (document["schema"], document["ok"], document["dims"]) == ("trtbuild.run/1", True, {"batch": 2})
    process = small.command_line.run("run", "ranker", "--device", "cpu", "--output", str(tmp_path / "out.npz"))
    assert process.stdout.startswith("ranker on the CPU: the reference program in PyTorch, no engine")
    assert process.stdout.endswith(f"written: {tmp_path / 'out.npz'}\n")
    failed = small.command_line("run", "ranker", "--device", "cpu", "-i", "x=random:17x8", expect=1)
    assert failed["errors"][0]["type"] == "CallRefused"


# `HostMemory` takes the place of `TorchMemory`, the class for the memory of a GPU if torch is installed.
@pytest.mark.parametrize("memory", [None, HostMemory(0)], ids=["cpu", "gpu with torch"])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "complex32"])
def test_rejects_an_output_whose_dtype_numpy_does_not_have(small: Small, name: str, memory: HostMemory | None) -> None:
    package = open_package(small.project / "dist/ranker")
    with PackageOnDevice(package, device="cpu", target=None) as on_device:
        on_device._memory = memory
        with pytest.raises(UsageError, match=f"an output is {name}, a dtype that numpy does not have"):
            on_device.get(torch.ones(2).to(getattr(torch, name)))
        conjugate = torch.tensor([1 + 2j]).conj()
        assert on_device.get(conjugate).data.tolist() == [1 - 2j]
