"""Programs in which modules have different precisions: each operator computes in the type of its module."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.lower.half_precision.test_dtypes import layer_text
from trtbuild.core.model.precisions import PRECISIONS, Precision, Precisions, module_precisions
from trtbuild.core.values.module_paths import enclosing_paths
from trtbuild.errors import SourceError
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import module_paths, program_text

_CAST = torch.ops.aten._to_copy.default


def mixed(default: Precision, **patterns: list[str]) -> Precisions:
    """Precisions from patterns of module paths, such as ``float32=["*.norm"]``. All other modules have `default`."""
    return Precisions(default, module_precisions(patterns))  # type: ignore[arg-type]


class Norm(nn.Module):
    """A norm whose operators may all compute in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.abs().amax(-1, keepdim=True) + 0.5) * self.weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = Norm(), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def dtypes(program: Program, path: str) -> set[torch.dtype]:
    """The types of the floating-point values that the operators of a module compute."""
    return {
        node.meta["val"].dtype
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not _CAST and f"{path_of(node)}.".startswith(f"{path}.")
        if isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].is_floating_point()
    }


def casts(program: Program) -> Iterator[tuple[torch.dtype, torch.dtype]]:
    """The dtypes before and after each cast."""
    for node in program.graph.find_nodes(op="call_function", target=_CAST):
        yield node.all_input_nodes[0].meta["val"].dtype, node.meta["val"].dtype


def test_each_operator_computes_in_the_type_of_its_module(lower_module: Any) -> None:
    traced, program = lower_module(Net().eval(), [X], mixed("float16", float32=["*.norm"], bfloat16=["head"]))
    for k in range(4):
        assert dtypes(program, f"layers.{k}.norm") == {torch.float32}
        assert dtypes(program, f"layers.{k}.inner") == dtypes(program, f"layers.{k}.outer") == {torch.float16}
    assert dtypes(program, "head") == {torch.bfloat16}
    assert list(casts(program)).count((torch.float16, torch.bfloat16)) == 1
    (output,) = program.output_nodes
    assert output.meta["val"].dtype is torch.float32

    # the expected result, which eager PyTorch computes in these dtypes
    def linear(layer: nn.Linear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return nn.functional.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))

    with torch.no_grad():
        x = X  # the first norm reads the input of the model
        for layer in traced.module.layers:
            inner = linear(layer.inner, layer.norm(x.float()), torch.float16)
            x = x.half() + linear(layer.outer, inner.relu(), torch.float16)
        expected = linear(traced.module.head, x, torch.bfloat16).float()
    assert torch.equal(traced.run(program)[0], expected)


def test_equal_layers_stay_equal_beside_a_layer_of_another_precision(lower_module: Any) -> None:
    for default, other in (("float16", "float32"), ("float16", "bfloat16"), ("bfloat16", "float16")):
        program = lower_module(Net().eval(), [X], mixed(default, **{other: ["layers.2"]}))[1]  # type: ignore[arg-type]
        layers = [layer_text(program, f"layers.{k}") for k in range(4)]
        assert layers[0] == layers[1] == layers[3] and layers[2] != layers[0]
        assert dtypes(program, "layers.2") == {getattr(torch, other)}


class Large(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1000 * 1000 / 1000 / 1000


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fit, self.large, self.last = nn.Linear(8, 8), Large(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.large(self.fit(x)))


def test_a_module_in_float32_or_bfloat16_computes_numbers_beyond_float16(lower_module: Any) -> None:
    for name, tolerance in (("float32", 5e-3), ("bfloat16", 4e-2)):
        traced, program = lower_module(Outer(), [X], mixed("float16", **{name: ["large"]}))
        assert dtypes(program, "large") == {getattr(torch, name)}
        (result,), (expected,) = traced.run(program), traced.eager()
        assert (result - expected).abs().max() <= tolerance * expected.abs().max()


class SharedWeight(nn.Module):
    """Two modules share one weight, and both read `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.right.weight = self.left.weight

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.left(x)
        return (scores + mask).softmax(-1), torch.cat([self.right(x), scores], -1) > 0.5


def test_a_weight_and_an_input_are_cast_to_each_type(lower_module: Any) -> None:
    mask = torch.full((5, 8), torch.finfo(torch.float32).min).tril(-1)
    traced, program = lower_module(SharedWeight(), [X, mask], mixed("float32", float16=["left"], bfloat16=["right"]))
    assert dtypes(program, "left") == {torch.float16} and dtypes(program, "right") == {torch.bfloat16}
    types = [{user.meta["val"].dtype for user in weight.users} for weight in program.weight_nodes]
    assert {torch.float16, torch.bfloat16} in types  # the weight that both modules have
    result, expected = traced.run(program), traced.eager()
    assert torch.allclose(result[0], expected[0], atol=5e-3) and result[1].dtype is torch.bool


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_attention_is_written_out_in_modules_of_half_precision(lower_module: Any, calls: Any) -> None:
    module = nn.Sequential(Attention(), Attention())
    program = lower_module(module, [torch.rand(2, 3, 4, 8)], mixed("float32", bfloat16=["1"]))[1]
    assert calls(program).count("scaled_dot_product_attention.default") == 1
    assert dtypes(program, "0") == {torch.float32} and torch.bfloat16 in dtypes(program, "1")


def test_patterns_that_change_no_operator_give_the_same_graph(lower_module: Any) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.LayerNorm(8), nn.Linear(8, 8)).eval()
    texts = {
        program_text(lower_module(module, [X], precisions)[1])
        for precisions in (
            "float16",
            mixed("float16"),
            mixed("float16", bfloat16=["1"]),
            mixed("float16", float32=["1"]),
        )
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("precisions", "text", "hint"),
    [
        (
            mixed("float16", float32=["*.nrom"]),
            "'*.nrom' (float32) matches no module",
            "the module paths are: layers, ",
        ),
        (mixed("float16", bfloat16=["haed"]), "'haed' (bfloat16) matches no module", "did you mean 'head'?"),
        (
            mixed("float16", float32=["*.norm"], bfloat16=["layers.0.*"]),
            "module 'layers.0.norm' is matched by '*.norm' (float32) and by 'layers.0.*' (bfloat16)",
            "list 'layers.0.norm' itself",
        ),
    ],
)
def test_rejects_patterns_that_do_not_fit_the_model(lower_module: Any, precisions: Any, text: str, hint: str) -> None:
    with pytest.raises(SourceError) as caught:
        lower_module(Net(), [X], precisions)
    assert caught.value.code == "precision-pattern" and text in caught.value.text
    assert hint in (caught.value.hint or "")
    assert caught.value.field in {entry.field for entry in precisions.modules}


@pytest.mark.parametrize("name", ["conv", "manual_attention", "pre_norm", "post_norm", "vit", "bert"])
def test_random_precisions_of_modules_give_right_programs(traced: Any, decompositions: Any, name: str) -> None:
    """`CastInserter` also checks each program: it raises an error if a result does not have the decided type."""
    model = traced(name)
    paths = dict.fromkeys(prefix for path, _, _ in module_paths(model.program) for prefix in enclosing_paths(path))
    for seed in range(3):
        generator = random.Random(f"{name}/{seed}")
        chosen = generator.sample(list(paths), min(len(paths), 6))
        patterns: dict[Precision, list[str]] = {precision: [] for precision in PRECISIONS}
        for path in chosen:
            patterns[generator.choice(PRECISIONS)].append(path)
        precisions = Precisions(generator.choice(PRECISIONS), module_precisions(patterns))
        program = lower(model.program, precisions, decompositions)
        for result, expected in zip(model.run(program), model.eager(), strict=True):
            assert result.dtype is expected.dtype
            assert torch.equal(result.isnan(), expected.isnan())
            assert (result - expected).nan_to_num().abs().max() <= 4e-2 * expected.nan_to_num().abs().max(), precisions
