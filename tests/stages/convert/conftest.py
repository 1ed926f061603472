"""Small models for the tests of the convert step. Each is exported once per session. Decompositions replace the lower
step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

from trtbuild.stages.convert.conversion import Conversion, convert
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.program.functional import NamedWeight, Program, functional
from trtbuild.stages.program.translations import decomposition_table

#: The sizes of the two dynamic dims, batch (b) and sequence (s).
SIZES = {"min": {"b": 1, "s": 2}, "opt": {"b": 3, "s": 5}, "max": {"b": 8, "s": 16}}


class Module(nn.Module):
    """A module whose `forward` passes the module and the inputs to a function. Tensors among `members` become buffers."""

    def __init__(self, function: Callable[..., Any], /, **members: Any) -> None:
        super().__init__()
        self.function_ = function
        for name, member in members.items():
            if isinstance(member, nn.Module):
                setattr(self, name, member)
            else:
                self.register_buffer(name, member)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function_(self, *args)


@dataclass(frozen=True)
class Case:
    """A model. Each input is (shape, kind). In a shape, ``b`` and ``s`` are dynamic sizes. A kind is a dtype, or
    ``below10`` for integers from 0 to 9."""

    build: Callable[[], nn.Module]
    inputs: tuple[tuple[tuple[int | str, ...], str], ...]
    tolerance: float = 2e-5


def _tensor(shape: Sequence[int | str], kind: str, sizes: dict[str, int]) -> torch.Tensor:
    dims = [size if isinstance(size, int) else sizes[size] for size in shape]
    if kind == "below10":
        return torch.randint(0, 10, dims)
    if kind == "bool":
        return torch.rand(dims) > 0.4
    return torch.randn(dims).to(getattr(torch, kind))


@dataclass
class LoweredCase:
    """A case whose module has been exported and decomposed."""

    case: Case
    module: nn.Module
    program: Program
    slots: tuple[NamedWeight, ...]

    def tensors(self, at: str) -> list[torch.Tensor]:
        """Random inputs with the sizes `SIZES[at]`."""
        torch.manual_seed(7)
        return [_tensor(shape, kind, SIZES[at]) for shape, kind in self.case.inputs]

    def eager(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            result = self.module(*tensors)
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def weights(self) -> dict[str, np.ndarray]:
        """The values of the weights, by their names in a conversion: ``w0``, ``w1``."""
        values = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {f"w{index}": values[slot.name].detach().numpy() for index, slot in enumerate(self.slots)}


def run(model: bytes, weights: dict[str, np.ndarray], tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The outputs that onnxruntime computes."""
    session = onnxruntime.InferenceSession(with_inline_weights(model, weights), providers=["CPUExecutionProvider"])
    return session.run(None, {f"i{index}": tensor.numpy() for index, tensor in enumerate(tensors)})


def export_and_lower(case: Case) -> LoweredCase:
    torch.manual_seed(0)
    module = case.build().eval()
    dims = {"b": Dim("b", min=1, max=8), "s": Dim("s", min=2, max=16)}
    shapes = [{axis: dims[n] for axis, n in enumerate(shape) if isinstance(n, str)} for shape, _ in case.inputs]
    example = tuple(_tensor(shape, kind, SIZES["opt"]) for shape, kind in case.inputs)
    # torch.export counts *args as one argument
    dynamic_shapes = (tuple(shapes),) if isinstance(module, Module) else tuple(shapes)
    with torch.no_grad():
        exported = export(module, example, dynamic_shapes=dynamic_shapes).run_decompositions(decomposition_table())
    program, slots = functional(exported)
    return LoweredCase(case, module, program, slots)


def _function_case(
    function: Callable[..., Any], *inputs: tuple[tuple[int | str, ...], str], tolerance: float = 2e-5, **members: Any
) -> Case:
    """A case with a `Module`. A member is a tensor, or a function that creates a module or a tensor."""

    def build() -> nn.Module:
        created = {name: member() if callable(member) else member for name, member in members.items()}
        return Module(function, **created)

    return Case(build, inputs, tolerance)


class Encoder(nn.Module):
    """A transformer layer with a class token that is expanded to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        q, k, v = self.qkv(self.norm(x)).reshape(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.mlp(x)


X: tuple[tuple[int | str, ...], str] = (("b", 8), "float32")
SEQUENCE: tuple[tuple[int | str, ...], str] = (("b", "s", 8), "float32")
IMAGE: tuple[tuple[int | str, ...], str] = (("b", 4, 8, 8), "float32")
HALF: tuple[tuple[int | str, ...], str] = (("b", 8), "float16")
IDS: tuple[tuple[int | str, ...], str] = (("b", "s"), "below10")

CASES: dict[str, Case] = {
    "linear": _function_case(lambda m, x: m.fc(x), X, fc=lambda: nn.Linear(8, 4)),
    "conv": _function_case(
        lambda m, x: F.relu(m.n(m.c(x))), IMAGE, c=lambda: nn.Conv2d(4, 4, 3, padding=1), n=lambda: nn.BatchNorm2d(4)
    ),
    "norms": _function_case(
        lambda m, x: m.rms(m.layer(x)) + m.group(x.transpose(1, 2)).transpose(1, 2),
        SEQUENCE,
        layer=lambda: nn.LayerNorm(8),
        rms=lambda: nn.RMSNorm(8),
        group=lambda: nn.GroupNorm(2, 8),
    ),
    "sdpa": _function_case(
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), *[(("b", 2, "s", 8), "float32")] * 3
    ),
    "sdpa_mask": _function_case(
        lambda m, q, k, mask: F.scaled_dot_product_attention(q, k, k, attn_mask=mask | torch.eye(5, dtype=torch.bool)),
        (("b", 2, 5, 8), "float32"),
        (("b", 2, 5, 8), "float32"),
        (("b", 1, 5, 5), "bool"),
    ),
    "attention": _function_case(
        lambda m, x: m.a(x, x, x, need_weights=False)[0],
        SEQUENCE,
        a=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "encoder": Case(Encoder, ((("b", "s", 16), "float32"),)),
    "tied": _function_case(lambda m, i: F.linear(m.e(i), m.e.weight), IDS, e=lambda: nn.Embedding(10, 6)),
    "interpolate": _function_case(
        lambda m, x: F.interpolate(x, scale_factor=2.0) + F.interpolate(x, size=(16, 16), mode="bilinear"), IMAGE
    ),
    "mask": _function_case(
        lambda m, x, k: x.masked_fill(~k, -1e9).softmax(-1) + torch.where(k, x, 0.0), X, (("b", 8), "bool")
    ),
    "output_is_input_or_weight_or_twice": _function_case(
        lambda m, x: (lambda y: (x, y, x, m.w, y, x[:, :0]))(x + 1), X, w=lambda: torch.randn(4)
    ),
    "casts": _function_case(lambda m, x: (x.int(), x.half(), x > 0, x.long() + 1, (x > 0).float()), X),
    "mathematics": _function_case(
        lambda m, x, y: (torch.einsum("bi,bj->bij", x, y), x.cumsum(1), F.gelu(x) + F.gelu(y, approximate="tanh")), X, X
    ),
    "ordering": _function_case(lambda m, x: (*torch.topk(x, 3), *torch.sort(x, -1), x.argmax(-1)), X),
    "indexing": _function_case(
        lambda m, x, i: (torch.gather(x, 1, i), x[:, m.i], torch.split(x, 2, 1)[1] + x.chunk(5, 1)[0].flip(1)),
        (("b", 10), "float32"),
        (("b", 4), "below10"),
        i=lambda: torch.tensor([1, 2, 5]),
    ),
    "float16": _function_case(
        lambda m, x: m.n(m.fc(x)).softmax(-1),
        HALF,
        fc=lambda: nn.Linear(8, 8).half(),
        n=lambda: nn.LayerNorm(8).half(),
        tolerance=2e-3,
    ),
    "scalar": _function_case(lambda m, x, y: x * y + x.sum(), X, ((), "float32"), tolerance=1e-4),
    "implicit_promotion": _function_case(lambda m, x, i: x * i + i / 2 + (i > 1) * x, X, (("b", 8), "below10")),
    "sizes": _function_case(lambda m, x: x.reshape(x.shape[0] * x.shape[1], -1) * x.shape[1], SEQUENCE),
    "positions": _function_case(
        lambda m, x: x + m.e(torch.arange(x.shape[1])) + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8]),
        SEQUENCE,
        e=lambda: nn.Embedding(16, 8),
    ),
    "bool_input": _function_case(lambda m, k: (~k).float().cumsum(-1).long() * k, (("b", "s"), "bool")),
    "unused": _function_case(
        lambda m, x, y: x + m.w, X, (("b", 3), "float32"), fc=lambda: nn.Linear(3, 3), w=lambda: torch.randn(8)
    ),
    "in_place": _function_case(lambda m, x: (lambda y: (y[:, 0].mul_(2), y)[1])(x.clone()), X),
    "cond": _function_case(
        lambda m, x: torch.cond(x.sum() > 0, lambda x: x * 2 + m.w, lambda x: x - 1, (x,)), X, w=lambda: torch.randn(8)
    ),
    "lstm": _function_case(lambda m, x: m.r(x)[0], (("b", 5, 8), "float32"), r=lambda: nn.LSTM(8, 6, batch_first=True)),
    "pool_pad": _function_case(
        lambda m, x: F.pad(F.adaptive_avg_pool2d(F.max_pool2d(m.c(x), 2), 2), (1, 0, 0, 1)),
        IMAGE,
        c=lambda: nn.ConvTranspose2d(4, 2, 2, stride=2),
    ),
}


@functools.cache
def cached_lowered_case(name: str) -> LoweredCase:
    return export_and_lower(CASES[name])


@functools.cache
def converted_case(name: str, opset: int = 20) -> Conversion:
    return convert(cached_lowered_case(name).program, opset)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES)


@pytest.fixture(scope="session")
def lowered_case() -> Callable[[str], LoweredCase]:
    """A function that returns a case by its name, exported and lowered."""
    return cached_lowered_case


@pytest.fixture(scope="session")
def converted() -> Callable[..., Conversion]:
    """A function that converts a case, by name and opset."""
    return converted_case


@pytest.fixture(scope="session")
def onnxruntime_run() -> Callable[..., list[np.ndarray]]:
    return run


@pytest.fixture(scope="session")
def lowered() -> Callable[[nn.Module, tuple[Any, ...], Any], tuple[Program, tuple[NamedWeight, ...]]]:
    """A function that exports and lowers any module. It returns the program and its weights."""

    def lower(module: nn.Module, args: tuple[Any, ...], dims: Any) -> tuple[Program, tuple[NamedWeight, ...]]:
        with torch.no_grad():
            exported = export(module.eval(), args, dynamic_shapes=dims)
        return functional(exported.run_decompositions(decomposition_table()))

    return lower
