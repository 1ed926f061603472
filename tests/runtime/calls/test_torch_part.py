"""Partitions that PyTorch runs: results, weights, devices, and inputs of engines."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from trtbuild.core.packages.package_index import PackedWeight
from trtbuild.default_dtype import default_float32
from trtbuild.errors import PackageDamaged
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.torch_part import ProgramGraph, TorchPart, weight_tensors
from trtbuild.stages.program.functional import functional

CALL = Call(profile=0, sizes=(3,), stream=0, device="cpu")


class Net(torch.nn.Module):
    """A model with a weight, a constant, tensors that the graph creates, and a nested graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        shift = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        y = torch.sort(x * self.weight + shift + torch.ones(4, device=x.device), dim=1).values + rows
        return y.t(), torch.cond(x.shape[0] > 5, lambda v: v + 1, lambda v: v * 2, (y,))


@pytest.fixture(scope="module")
def program() -> bytes:
    batch = torch.export.Dim("batch", min=2, max=16)
    exported = torch.export.export(Net(), (torch.zeros(3, 4),), dynamic_shapes=({0: batch},))
    program, _ = functional(exported.run_decompositions({}))
    return program.to_bytes()


def part(program: bytes, device: str, contiguous_outputs: tuple[int, ...] = ()) -> TorchPart:
    graph = ProgramGraph(memoryview(program), torch.device(device), "a test")
    assert graph.weight_count == 1
    return TorchPart(graph, [torch.arange(4.0, device=device)], contiguous_outputs)


def test_computes_the_same_results_as_the_module(program: bytes) -> None:
    for rows in (2, 7):
        x = torch.randn(rows, 4)
        for result, expected in zip(part(program, "cpu")([x], CALL), Net()(x), strict=True):
            torch.testing.assert_close(result, expected)
            assert not result.requires_grad


def test_threads_read_programs_at_the_same_time(program: bytes) -> None:
    barrier = Barrier(4)

    def read(_: int) -> Any:
        barrier.wait(timeout=60)
        return part(program, "cpu")([torch.zeros(2, 4)], CALL)[0].shape

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(read, range(4))) == [(4, 2)] * 4


def test_ignores_autocast_of_the_caller() -> None:
    """An engine that reads the output needs the dtype that the package defines."""
    torch_part = TorchPart(ProgramGraph(memoryview(_linear()), torch.device("cpu"), "a test"), [torch.eye(4)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.nn.functional.linear(torch.ones(1, 4), torch.eye(4)).dtype is torch.bfloat16
        (output,) = torch_part([torch.full((1, 4), 1.001)], CALL)
    torch.testing.assert_close(output, torch.full((1, 4), 1.001))


class Positions(torch.nn.Module):
    """A module that converts integers into floats of torch's default type."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cond(x.shape[0] > 5, lambda v, m: v + m / 3, lambda v, m: v - m / 3, (x, n)), torch.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_ignores_the_default_type_of_the_caller(dtype: torch.dtype) -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    inputs = (torch.ones(3), torch.arange(3))
    exported = torch.export.export(Positions(), inputs, dynamic_shapes=({0: batch}, {0: batch}))
    data, _ = functional(exported.run_decompositions({}))
    torch_part = TorchPart(ProgramGraph(memoryview(data.to_bytes()), torch.device("cpu"), "a test"), [])
    expected = torch_part(inputs, CALL)
    torch.set_default_dtype(dtype)
    try:
        results = torch_part(inputs, CALL)
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


def test_the_default_type_is_restored_after_the_last_of_several_blocks() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with default_float32:
            with default_float32:
                pass
            assert torch.get_default_dtype() is torch.float32  # the first block is still open
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_returned_weight_is_a_copy() -> None:
    class Returns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            same, turned = self.weight.type_as(x), torch.einsum("ij->ji", self.weight.view(2, 2))
            return x * self.weight, self.weight.view(2, 2).t(), self.weight.chunk(2)[1], same, turned, x.view(4)

    exported = torch.export.export(Returns(), (torch.ones(1, 4),))
    graph = ProgramGraph(
        memoryview(functional(exported.run_decompositions({}))[0].to_bytes()), torch.device("cpu"), "a test"
    )
    weight = torch.arange(4.0)
    torch_part = TorchPart(graph, [weight], returned_outputs=range(6))
    x = torch.ones(1, 4)
    for result in torch_part([x], CALL)[:5]:
        result.add_(1)
    assert weight.tolist() == [0, 1, 2, 3]
    assert torch_part([x], CALL)[5].data_ptr() == x.data_ptr()  # an input is returned without a copy


def test_a_view_of_another_partitions_weight_is_a_copy() -> None:
    class View(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t()

    program, _ = functional(torch.export.export(View(), (torch.ones(2, 3),)).run_decompositions({}))
    graph = ProgramGraph(memoryview(program.to_bytes()), torch.device("cpu"), "a test")
    weight = torch.zeros(2, 3)
    torch_part = TorchPart(graph, [], returned_outputs=(0,), protected=[weight])
    torch_part([weight[:]], CALL)[0].fill_(1)
    assert not weight.any()


def _linear() -> bytes:
    exported = torch.export.export(torch.nn.Linear(4, 4, bias=False), (torch.zeros(1, 4),))
    return functional(exported.run_decompositions({}))[0].to_bytes()


def test_the_program_creates_tensors_on_the_device(program: bytes) -> None:
    """The meta device stands for a GPU: an operator fails if one of its tensors is still on the CPU."""
    first, second = part(program, "meta")([torch.randn(3, 4, device="meta")], CALL)
    assert first.device == second.device == torch.device("meta") and first.shape == (4, 3)


def test_inputs_of_an_engine_are_contiguous(program: bytes) -> None:
    x = torch.randn(3, 4)
    assert not part(program, "cpu")([x], CALL)[0].is_contiguous()
    assert part(program, "cpu", (0,))([x], CALL)[0].is_contiguous()


def test_a_call_does_not_keep_its_inputs_alive(program: bytes) -> None:
    torch_part = part(program, "cpu")
    x = torch.randn(3, 4)
    alive = weakref.ref(x)
    torch_part([x], CALL)
    del x
    gc.collect()
    assert alive() is None


def test_rejects_an_invalid_program() -> None:
    with pytest.raises(PackageDamaged, match=r"cannot read the program of partition 'p1'") as raised:
        ProgramGraph(memoryview(b"PK no archive"), torch.device("cpu"), "partition 'p1'")
    assert "torch" in str(raised.value.hint)


def test_weights_are_views_of_the_bytes() -> None:
    data = {"weights/a": memoryview(bytearray(range(8))), "weights/b": memoryview(bytearray())}
    weights = {
        3: PackedWeight("w", "uint8", (2, 4), "weights/a"),
        4: PackedWeight("tied", "uint8", (2, 4), "weights/a"),
        5: PackedWeight("other", "int16", (4,), "weights/a"),
        6: PackedWeight("none", "float32", (0, 3), "weights/b"),
        7: PackedWeight("scalar", "int64", (), "weights/a"),
    }
    tensors: dict[int, Any] = weight_tensors(weights, data, torch.device("cpu"))
    assert tensors[3].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and tensors[4] is tensors[3]
    assert tensors[5].shape == (4,) and tensors[6].shape == (0, 3) and tensors[7].shape == ()
    data["weights/a"][0] = 9
    assert tensors[3][0, 0] == 9  # no copy


def test_resolves_lazy_negation_for_inputs_of_an_engine() -> None:
    class Imaginary(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_complex(x).conj().imag

    x = torch.tensor([[1.0, 2.0]])  # the result has one element, so it is contiguous with any strides
    exported = torch.export.export(Imaginary(), (x,)).run_decompositions({})
    graph = ProgramGraph(memoryview(functional(exported)[0].to_bytes()), torch.device("cpu"), "a test")
    (lazy,), (plain,) = TorchPart(graph, [])([x], CALL), TorchPart(graph, [], (0,))([x], CALL)
    assert lazy.is_neg() and lazy.is_contiguous() and not plain.is_neg()
    assert lazy.tolist() == plain.tolist() == plain.numpy().tolist() == [-2.0]


@pytest.mark.parametrize("counts", [(0, 1, 2), (1, 2, 2), (1, 1, 3)])
def test_an_index_must_have_the_counts_of_the_program(program: bytes, counts: tuple[int, int, int]) -> None:
    """Otherwise a call would fail, or other outputs would be returned."""
    graph = ProgramGraph(memoryview(program), torch.device("cpu"), "a test")
    graph.check_counts(1, 1, 2)
    with pytest.raises(PackageDamaged, match="but 1, 1 and 2 in its program"):
        graph.check_counts(*counts)
