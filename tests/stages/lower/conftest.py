"""Models for the tests of the lower step, exported once per session, and functions that run lowered programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

from trtbuild.core.model.precisions import Precisions
from trtbuild.stages.lower.passes import PASSES
from trtbuild.stages.lower.request import Request
from trtbuild.stages.lower.run import lower, run_passes
from trtbuild.stages.program.functional import NamedWeight, Program, functional
from trtbuild.stages.program.translations import decomposition_table


@dataclass
class ExportedModel:
    """An exported module, and the inputs for comparisons with eager PyTorch.

    The models in MODELS are exported with other sizes than those of `inputs`.
    """

    module: nn.Module
    program: Program
    slots: tuple[NamedWeight, ...]
    inputs: tuple[torch.Tensor, ...]

    def eager(self) -> list[torch.Tensor]:
        """The tensors that the module returns."""
        with torch.no_grad():
            result = self.module(*self.inputs)
        values = result if isinstance(result, tuple | list) else getattr(result, "to_tuple", lambda: (result,))()
        return [value for value in values if isinstance(value, torch.Tensor)]

    def run(self, program: Program) -> list[torch.Tensor]:
        """The outputs of `program` for `inputs` and the module's weights."""
        weights = {**dict(self.module.named_parameters(remove_duplicate=False)), **dict(self.module.named_buffers())}
        with torch.no_grad():
            result = program.exported.module()(*(weights[slot.name] for slot in self.slots), *self.inputs)
        return list(result)


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)
        nn.init.uniform_(self.bn.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.interpolate(self.norm(x), scale_factor=2.0, mode="bilinear")
        x = F.max_pool2d(F.interpolate(x, scale_factor=2.0), 2)
        return self.head(x.mean((2, 3)))


class ManualAttention(nn.Module):
    """Attention as separate operators. The mask adds finfo.min, and hides all keys of some rows."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bld,bsd->bls", q, k) / 2.5
        bias = (1.0 - mask.float()) * torch.finfo(torch.float32).min
        return F.softmax((scores + bias[:, None, :]) / 0.7, dim=-1) @ v


class Sdpa(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.kwargs = kwargs

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.kwargs)
        return y.transpose(1, 2).flatten(2)


class RmsNorm(nn.Module):
    """RMS normalization as separate operators. Its squares are too large for float16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.proj = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj(x) * 600.0
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, width: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_first:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    """Three equal layers. The first one reads the program's input, and the last one computes the program's output."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(16, norm_first) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Positions(nn.Module):
    """Rotary embeddings: a matrix product computes angles from positions that half precision does not represent exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(4).float() / 4), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[1]).float() + 3000.0
        angles = (positions[:, None] @ self.frequencies[None, :]).repeat(1, 2)
        return self.embedding(ids) * angles.cos() + self.embedding(ids).roll(1, -1) * angles.sin()


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
    return ViTModel(ViTConfig(image_size=32, patch_size=8, **size), add_pooling_layer=False)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    size = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertModel(BertConfig(vocab_size=99, max_position_embeddings=64, **size), add_pooling_layer=False)


def _tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    mask[-1] = 0  # a row that is masked entirely
    return torch.randint(0, 99, (batch, length)), mask


def _attention(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    q, k, v = (torch.randn(batch, length, 8) for _ in range(3))
    return q, k, v, _tokens(batch, length)[1]


_B, _S = Dim("b", min=1, max=8), Dim("s", min=2, max=64)
_ROWS = {0: _B, 1: _S}

#: Name → (function that creates the module, function from batch and length to inputs, dynamic shapes).
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[torch.Tensor, ...]], Any]] = {
    "mlp": (Mlp, lambda b, s: (torch.randn(b, 8),), ({0: _B},)),
    "conv": (ConvNet, lambda b, s: (torch.randn(b, 3, 16, 16),), ({0: _B},)),
    "manual_attention": (ManualAttention, _attention, (_ROWS,) * 4),
    "sdpa": (Sdpa, lambda b, s: tuple(torch.randn(b, 2, s, 8) for _ in range(3)), ({0: _B, 2: _S},) * 3),
    "rms_norm": (RmsNorm, lambda b, s: (torch.randn(b, s, 16),), (_ROWS,)),
    "pre_norm": (lambda: Encoder(True), lambda b, s: (torch.randn(b, 5, 16),), ({0: _B},)),
    "post_norm": (lambda: Encoder(False), lambda b, s: (torch.randn(b, 5, 16),), ({0: _B},)),
    "positions": (Positions, lambda b, s: (torch.randint(0, 50, (b, s)),), (_ROWS,)),
    "vit": (_vit, lambda b, s: (torch.randn(b, 3, 32, 32),), ({0: _B},)),
    "bert": (_bert, _tokens, {"input_ids": _ROWS, "attention_mask": _ROWS}),
}


@pytest.fixture(scope="session")
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The decompositions that the lower step applies."""
    return decomposition_table()


def trace(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], shapes: Any = None, example: Any = None
) -> ExportedModel:
    exported = export(module.eval(), example or inputs, dynamic_shapes=shapes)
    if any("_." in str(node.target) for node in exported.graph.nodes):  # an in-place operator, such as mul_.Tensor
        exported = exported.run_decompositions({})  # the trace step does this with all programs
    program, slots = functional(exported)
    lifted = {spec.target for spec in program.exported.graph_signature.input_specs if spec.target is not None}
    for name in set(program.exported.constants) - lifted:
        del program.exported.constants[name]  # in the functional form, buffers that are not persistent are weights
    return ExportedModel(module, program, slots, inputs)


@pytest.fixture(scope="session")
def traced() -> Callable[[str], ExportedModel]:
    """A function that returns a model of MODELS by its name."""
    cached: dict[str, ExportedModel] = {}

    def traced_model(name: str) -> ExportedModel:
        if name not in cached:
            torch.manual_seed(7)
            module, inputs, shapes = MODELS[name]
            cached[name] = trace(module(), inputs(3, 7), shapes, example=inputs(2, 5))
        return cached[name]

    return traced_model


@pytest.fixture(scope="session")
def lowered(traced: Callable[[str], ExportedModel], decompositions: Any) -> Callable[[str, Any], Program]:
    """A function that lowers a model of MODELS, by name and precision. Tests must not change the result.

    The first pass runs only once for each model, because it takes most of the time.
    """
    functionalized: dict[str, Program] = {}
    cached: dict[tuple[str, str], Program] = {}

    def lowered_model(name: str, precision: Any = "float32") -> Program:
        request = Request(Precisions(precision), decompositions)
        if name not in functionalized:
            functionalized[name] = PASSES[0].function(traced(name).program, request)
        if (name, precision) not in cached:
            base = functionalized[name]
            program = Program(copy.deepcopy(base.exported), base.weights)
            cached[name, precision] = run_passes(program, request, PASSES[1:])
        return cached[name, precision]

    return lowered_model


@pytest.fixture(scope="session")
def lower_module(decompositions: Any) -> Callable[..., tuple[ExportedModel, Program]]:
    """A function that traces and lowers a module. Its arguments are module, inputs, precision and dynamic shapes."""

    def trace_and_lower(
        module: nn.Module, inputs: Any, precision: Any = "float32", shapes: Any = None
    ) -> tuple[ExportedModel, Program]:
        traced = trace(module, tuple(inputs), shapes)
        return traced, lower(traced.program, precision, decompositions)

    return trace_and_lower


@pytest.fixture(scope="session")
def calls() -> Callable[[Program], list[str]]:
    """A function that lists the operators of a program, in order, such as ``linear.default``."""

    def operator_names(program: Program) -> list[str]:
        return [str(node.target).removeprefix("aten.") for node in program.graph.nodes if node.op == "call_function"]

    return operator_names
