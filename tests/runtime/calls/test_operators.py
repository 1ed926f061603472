"""The operator that runs engines in ``.pt2`` files, tested without a GPU."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from tests.core.partition.test_engine_text import TEXT
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.partitions import TensorType
from trtbuild.driver.packages.engine_operator import register
from trtbuild.errors import CallRefused, NoFittingTarget, PackageDamaged
from trtbuild.runtime.calls import operators
from trtbuild.stages.program.functional import Program, functional

EMPTY = torch.empty(0, dtype=torch.uint8)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()


def as_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.fixture(scope="module")
def program() -> bytes:
    """The reference program of an engine, for 1 to 16 rows. Its second output is a view of its input."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(8, 3))

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.w, x.view(-1, 8)

    rows = {"x": {0: Dim("rows", min=1, max=16)}}
    exported = torch.export.export(Net().eval(), (torch.ones(4, 8),), dynamic_shapes=rows).run_decompositions({})
    program, _ = functional(exported)
    assert isinstance(program, Program)
    return program.to_bytes()


@pytest.fixture
def text(program: bytes) -> str:
    """The JSON text that describes the engine (`trtbuild.core.partition.engine_text`)."""
    return replace(
        TEXT,
        outputs=(TensorType("float32", (("sym", 0), 3)), TensorType("float32", (("sym", 0), 8))),
        reference=hashlib.sha256(program).hexdigest(),
    ).to_text()


def call(x: torch.Tensor, text: str, reference: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs: list[torch.Tensor] = torch.ops.trtbuild.engine([x], weights, EMPTY, reference, [x.shape[0]], text)
    return outputs


def test_runs_the_reference_program_on_the_cpu(program: bytes, text: str) -> None:
    weight, x = torch.full((8, 3), 2.0), torch.ones(5, 8)
    product, same = call(x, text, as_bytes(program), [weight])
    torch.testing.assert_close(product, x @ weight)
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()  # an operator must not return one of its inputs


def test_rejects_the_cpu_without_a_reference_program() -> None:
    with pytest.raises(NoFittingTarget, match="its inputs are on the CPU") as caught:
        call(torch.ones(5, 8), TEXT.to_text(), EMPTY, [])
    assert "reference: true" in str(caught.value.hint)


def test_rejects_an_altered_reference_program(program: bytes, text: str) -> None:
    altered = text.replace('"net"', '"other"')  # a text that is not in the cache of opened reference programs
    with pytest.raises(PackageDamaged, match="does not have the digest that is in the file"):
        call(torch.ones(5, 8), altered, as_bytes(program[:-1] + b"x"), [torch.ones(8, 3)])


def test_rejects_a_shape_outside_of_every_profile(program: bytes, text: str) -> None:
    with pytest.raises(CallRefused, match="axis 0 is 17, and allowed is 1 to 16"):
        call(torch.ones(17, 8), text, as_bytes(program), [torch.ones(8, 3)])


@pytest.mark.parametrize("text", ["{}", "[" * 200_000], ids=["empty", "deep"])
def test_an_invalid_text_counts_as_damage(text: str) -> None:
    with pytest.raises(PackageDamaged, match="cannot be used"):
        call(torch.ones(5, 8), text, EMPTY, [])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, 7),
        (("sym", 0), 5),
        (("mul", 2, ("sym", 0)), 10),
        (("add", 1, ("sym", 0), ("sym", 1)), 9),
        (("floordiv", ("sym", 0), 2), 2),
        (("ceildiv", ("sym", 0), 2), 3),
        (("mod", ("sym", 0), 3), 2),
        (("max", ("sym", 0), ("sym", 1)), 5),
        (("min", ("sym", 0), ("sym", 1)), 3),
        (("pow", ("sym", 1), 2), 9),
    ],
)
def test_output_shapes_of_fake_tensors_follow_the_size_expressions(size: Any, expected: int) -> None:
    text = replace(TEXT, outputs=(TensorType("float16", (size, 2)),)).to_text()
    with FakeTensorMode() as mode:
        x, empty = mode.from_tensor(torch.ones(5, 8)), mode.from_tensor(EMPTY)
        (output,) = torch.ops.trtbuild.engine([x], [], empty, empty, [5, 3], text)
    assert tuple(output.shape) == (expected, 2)
    assert output.dtype is torch.float16


def test_opens_an_engine_once_per_device_and_verifies_its_bytes() -> None:
    plan = b"a plan"
    text = replace(TEXT, plan=hashlib.sha256(plan).hexdigest()).to_text()
    opened: list[bytes] = []

    def opener(text: Any, data: memoryview, device: torch.device) -> Any:
        opened.append(bytes(data))
        return lambda values, call: values

    engines = operators._Engines(opener)
    device = torch.device("cuda:0")
    first = engines.get(text, as_bytes(plan), device)
    assert engines.get(text, as_bytes(plan), device) is first
    assert opened == [plan]
    with pytest.raises(PackageDamaged, match="the plan of engine 'p0' does not have the digest that is in the file"):
        engines.get(text, as_bytes(b"another"), torch.device("cuda:1"))
    assert opened == [plan]
    engines.get(text, as_bytes(plan), torch.device("cuda:1"))
    assert opened == [plan, plan]
    assert [profile.shapes for profile in first.profiles] == [(ShapeRange((1, 8), (4, 8), (16, 8)),)]
