"""Tensors whose memory does not contain their values are copied or rejected, so that no engine reads wrong values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.runtime.conftest import Built, Inputs
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.fake_tensorrt import FakeTensorRT
from tests.runtime.memory.test_memory import HostMemory
from tests.runtime.test_on_a_gpu import write_package
from trtbuild.driver.packages import engines as engines_of_packages
from trtbuild.driver.packages import machine
from trtbuild.errors import CallRefused
from trtbuild.runtime.calls.arguments import Arguments
from trtbuild.runtime.engines.workspaces import ALIGNMENT
from trtbuild.toolchain.libraries import devices, table
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.running.execution import TensorRT


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two engines of a fake TensorRT, which each compute 2x + 1 on torch tensors in host memory."""
    gpu = FakeGpu(runs_late=False)
    gpu.check = lambda *_: None  # type: ignore[method-assign] - the fake GPU does not know torch's memory
    gpu.alignment = 64  # torch's alignment on the CPU
    trt = FakeTensorRT(gpu)
    calls = calls_of("tensorrt", trt.__version__)
    assert calls is not None
    library, memory = TensorRT("tensorrt", trt, calls), HostMemory(gpu.new_stream(blocking=False))
    monkeypatch.setattr(devices, "device_sms", lambda: (90,))
    monkeypatch.setattr(table, "installed_version", lambda name: "8.6.1" if name == "tensorrt" else None)
    monkeypatch.setattr(engines_of_packages, "load_library", lambda _: library)
    monkeypatch.setattr(engines_of_packages, "choose_memory", lambda ordinal: memory)
    monkeypatch.setattr(engines_of_packages, "find_gpu", lambda ordinal: None)
    monkeypatch.setattr(machine, "_current_gpu_number", lambda: 0)
    write_package(tmp_path / "rows", {name: trt.plan("affine") for name in ("first", "second")})
    return trtbuild.load(tmp_path / "rows").module()


def aligned(values: torch.Tensor) -> torch.Tensor:
    """Return the same values at an aligned address, so that an engine reads them without a copy, as on a GPU."""
    buffer = torch.empty(values.numel() + ALIGNMENT, dtype=values.dtype)
    start = -buffer.data_ptr() % ALIGNMENT // values.element_size()
    result = buffer[start : start + values.numel()].view(values.shape).copy_(values)
    assert result.data_ptr() % ALIGNMENT == 0
    return result


def negated(values: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of these values. Its memory contains `-values`, which PyTorch negates on each read."""
    result = torch._neg_view(aligned(-values))
    assert result.is_neg() and result.is_contiguous() and torch.equal(result, values)
    return result


def test_an_engine_gets_a_negated_view_with_its_sign(module: Any) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    for _ in range(2):  # the first call with this shape, and a later one
        torch.testing.assert_close(module(negated(x))["middle"], x * 2 + 1)
    torch.testing.assert_close(module(x)["middle"], x * 2 + 1)


def test_a_tensor_and_its_negated_view_share_memory_and_have_different_results(module: Any) -> None:
    x = aligned(torch.arange(8.0).reshape(2, 4))
    for _ in range(2):
        torch.testing.assert_close(module(x)["middle"], x * 2 + 1)
        torch.testing.assert_close(module(torch._neg_view(x))["middle"], -x * 2 + 1)
    strided = torch.complex(x, x).conj().imag
    assert strided.is_neg() and not strided.is_contiguous()
    torch.testing.assert_close(module(strided)["middle"], -x * 2 + 1)


MakeTensor = Callable[[torch.Tensor], torch.Tensor]

UNSUPPORTED: dict[str, tuple[MakeTensor, str]] = {
    "sparse": (lambda x: x.to_sparse(), "input 'x' is a tensor of layout sparse_coo"),
    "sparse rows": (lambda x: x.to_sparse_csr(), "input 'x' is a tensor of layout sparse_csr"),
    "mkldnn": (lambda x: x.to_mkldnn(), "input 'x' is a tensor of layout mkldnn"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "input 'x' is a nested tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "input 'x' is a nested tensor"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "input 'x' has dtype quint8"),
    "complex": (lambda x: torch.complex(x, x).conj(), "input 'x' has dtype complex64"),
    "meta": (lambda x: x.to("meta"), "input 'x' is on meta"),
}
WITHOUT_MEMORY: dict[str, MakeTensor] = {
    "zeros that are nowhere": lambda x: torch._efficientzerotensor(x.shape),
    "fake": lambda x: torch._subclasses.FakeTensorMode().from_tensor(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_rejects_unsupported_tensors(module: Any, kind: str) -> None:
    make, message = UNSUPPORTED[kind]
    x = torch.arange(8.0).reshape(2, 4)
    for _ in range(2):  # the first call with this shape, and a later one
        with pytest.raises(CallRefused) as caught:
            module(make(x))
        assert message in str(caught.value) and caught.value.hint
        torch.testing.assert_close(module(x)["middle"], x * 2 + 1)


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_rejects_tensors_without_memory(module: Any, kind: str) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    for _ in range(2):
        with pytest.raises(CallRefused, match="without memory that an engine could read"):
            module(WITHOUT_MEMORY[kind](x))
        torch.testing.assert_close(module(x)["middle"], x * 2 + 1)


def test_rejects_an_engine_inside_of_a_torch_transform(module: Any) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    module(x)
    with pytest.raises(CallRefused, match=r"without memory that an engine could read.*\n.*outside of torch.vmap"):
        torch.vmap(lambda rows: module(rows)["middle"])(torch.stack([x, x]))


class Tagged(torch.Tensor):
    """A subclass whose tensors have memory that an engine can read."""


def test_accepts_subclasses_with_memory(module: Any) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    torch.testing.assert_close(module(x.as_subclass(Tagged))["middle"], x * 2 + 1)
    torch.testing.assert_close(module(negated(x).as_subclass(Tagged))["middle"], x * 2 + 1)
    torch.testing.assert_close(module(torch.nn.Parameter(x))["middle"], x * 2 + 1)


def test_does_not_change_other_errors_of_pytorch(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Arguments, *rest: object) -> None:
        raise RuntimeError("CUDA error: something else")

    monkeypatch.setattr(Arguments, "bind", fail)
    with pytest.raises(RuntimeError, match="something else"):
        module(torch.ones(2, 4))


@pytest.mark.filterwarnings("ignore")
def test_accepts_and_rejects_the_same_tensors_on_the_cpu(built: Built, inputs: Inputs) -> None:
    module = trtbuild.load(built.package, device="cpu").module()
    image, scale = inputs()
    expected = module(image, scale=scale)["found"][0]
    for _ in range(2):
        torch.testing.assert_close(module(negated(image), scale=negated(scale))["found"][0], expected)
        with pytest.raises(CallRefused, match="input 'scale' is a tensor of layout sparse_coo"):
            module(image, scale=scale.to_sparse())
        with pytest.raises(CallRefused, match="input 'scale' is a nested tensor"):
            module(image, scale=torch.nested.nested_tensor([scale]))
