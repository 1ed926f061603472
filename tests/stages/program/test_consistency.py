"""The checks of `stages.program.consistency`: after each step, a program has the sizes of the traced program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from torch import nn

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.core.model.spec import NamedDim
from trtbuild.errors import InconsistentShapes
from trtbuild.stages.lower import run as lowering
from trtbuild.stages.partition import run as partitioning
from trtbuild.stages.program import consistency, functional
from trtbuild.stages.program.consistency import read_program, refuse_changes, signature
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import first_difference, points_of

#: A range (min, opt, max) that torch treats as the size 2, because torch assumes that a dynamic size is never 1.
ROWS = (1, 2, 2)


class Decoder(nn.Module):
    """A part of a VAE's decoder: group normalization, attention over pixels, and a product of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.norm, self.attention = nn.GroupNorm(4, 16), nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.into(x)
        b, c, h, w = y.shape
        flat = self.norm(y.view(b, c, h * w)).transpose(1, 2)
        query, key, value = self.attention(flat).view(b, h * w, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(b, h * w, c)
        return self.out((mixed.transpose(1, 2).reshape(b, c, h, w) + y) / 1.5)  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A table of positions and a mask, as in BERT. Its slices, arange and expand use sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.out = nn.Embedding(50, 16), nn.Embedding(64, 16), nn.Linear(16, 16)
        self.register_buffer("ids", torch.arange(64)[None])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.positions(self.ids[:, :length])
        keep = mask.bool()[:, None, :].expand(-1, length, -1) & (
            torch.arange(length)[:, None] >= torch.arange(length) - 64
        )
        scores = (x @ x.transpose(1, 2)).masked_fill(~keep, torch.finfo(torch.float32).min)
        return self.out(scores.softmax(-1) @ x)  # type: ignore[no-any-return]


def decoder(**settings: Any) -> ModuleCase:
    return ModuleCase(Decoder().eval(), [("float32", [ROWS, 4, 6, 6])], **settings)


def tokens(**settings: Any) -> ModuleCase:
    named = (NamedDim("b", (("x0", 0), ("x1", 0))), NamedDim("s", (("x0", 1), ("x1", 1))))
    axes = [(1, 2, 3), ROWS]
    return ModuleCase(Tokens().eval(), [("int64", axes), ("int64", axes)], named, **settings)


PRECISIONS = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("create_case", [decoder, tokens])
def test_a_model_with_two_batch_sizes_is_right_at_both(create_case: Callable[..., ModuleCase], precision: str) -> None:
    case = create_case(precision=precision)
    comparison = differences(case, build(case))
    assert not comparison.differences, comparison.differences


@contextlib.contextmanager
def no_suppression() -> Iterator[None]:
    """Replaces `suppress_new_guards`. Inside the block, torch stores new guards and can replace symbols."""
    yield


def let_torch_replace_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (functional, lowering, partitioning):
        monkeypatch.setattr(module, "suppress_new_guards", no_suppression)


def disable_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "refuse_changes", lambda *_, **__: None)
    monkeypatch.setattr(partitioning, "refuse_inconsistency", lambda *_, **__: None)
    # remove the points (a number for each symbol) that come from the profiles
    monkeypatch.setattr(partitioning, "points_of", lambda program, _: points_of(program))
    monkeypatch.setattr(consistency, "read_program", Program.from_bytes)


@pytest.mark.parametrize(("create_case", "precision"), [(decoder, "float16"), (tokens, "float32")])
def test_the_checks_detect_a_dynamic_size_that_became_a_number(
    create_case: Callable[..., ModuleCase], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_torch_replace_symbols(monkeypatch)
    with pytest.raises(InconsistentShapes):
        build(create_case(precision=precision))


def test_without_the_checks_the_model_fails_at_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a reshape, the number 2 replaces a size. So the build or the comparison fails at batch size 1."""
    let_torch_replace_symbols(monkeypatch)
    disable_checks(monkeypatch)
    monkeypatch.setattr("trtbuild.driver.workers.handlers.compare_lowered", lambda *_: None)
    case = decoder(precision="float16")
    try:
        failures = differences(case, build(case)).differences
    except RuntimeError as error:
        failures = [str(error)]
    assert any("is invalid for input of size" in text for text in failures), failures


def build_with_another_pass(
    case: ModuleCase, monkeypatch: pytest.MonkeyPatch, change: Callable[[Program], None]
) -> None:
    """Build with `change` as one more lowering pass."""
    run_passes = lowering.run_passes

    def passes(*arguments: Any) -> Program:
        program = run_passes(*arguments)
        change(program)
        program.exported.graph_module.recompile()
        return program

    monkeypatch.setattr(lowering, "run_passes", passes)
    build(case)


def rows(body: str) -> ModuleCase:
    """A case whose only input ``x0`` has 2 to 8 rows and 4 columns. `body` is the expression that the module returns."""
    return ModuleCase(module_from_text([], body, 1), [("float32", [(2, 3, 8), 4])])


def test_detects_a_pass_that_writes_a_number_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def freeze(program: Program) -> None:
        for node in program.graph.nodes:
            if "reshape" in str(node.target):
                node.args = (node.args[0], [3, 2, 2])

    with pytest.raises(InconsistentShapes, match=r"after lower, aten\.reshape\.default fails: .* \(at d0 = 2\)"):
        build_with_another_pass(rows("x0.reshape(x0.shape[0], 2, 2) * 2"), monkeypatch, freeze)


def test_detects_a_pass_that_changes_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    def cast(program: Program) -> None:
        (output,) = program.output_nodes
        output.meta["val"] = output.meta["val"].to(torch.float16)

    with pytest.raises(
        InconsistentShapes, match=r"after lower, output 0 is float16\[2, 4\], but it is float32\[2, 4\]"
    ):
        build_with_another_pass(rows("x0 * 2"), monkeypatch, cast)


def exported(body: str, axis: tuple[int, int, int] = (1, 3, 8)) -> Program:
    """The traced program of a case. `axis` has the min, opt and max number of rows of ``x0``."""
    case = ModuleCase(module_from_text([], body, 1), [("float32", [axis, 4])])
    return build(case).traced


def test_detects_another_range_of_a_symbol() -> None:
    program, another = exported("x0 * 2"), exported("x0 * 2", (1, 3, 9))
    refuse_changes(program, signature(program), "lower")
    with pytest.raises(InconsistentShapes, match="symbols of the model's inputs"):
        refuse_changes(program, signature(another), "lower")


def test_detects_a_symbol_that_is_replaced_while_a_program_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported("x0 * 2").to_bytes()
    from_bytes = Program.from_bytes

    def replacing(stored: bytes) -> Program:
        program = from_bytes(stored)
        (size, _) = program.input_nodes[0].meta["val"].shape
        size.node.shape_env.replacements[size.node._expr] = sympy.Integer(3)
        return program

    read_program(data)
    monkeypatch.setattr(Program, "from_bytes", replacing)
    with pytest.raises(InconsistentShapes, match="replaced the size of an input by another while it read"):
        read_program(data)


@pytest.mark.parametrize("axes", [[8, (2, 3, 4), 8], [(1, 1, 2), (1, 1, 2), 8]])
def test_accepts_a_stride_that_torch_simplifies(axes: list[Any]) -> None:
    case = ModuleCase(module_from_text([], "x0.reshape(-1, 8) * 2", 1), [("float32", axes)])
    assert not differences(case, build(case)).differences


def test_a_size_that_divides_by_zero_is_refused() -> None:
    """At size 1, the result has no row, and the decomposition of the pooling divides by the number of rows."""
    module = module_from_text([], "F.interpolate(x0, scale_factor=0.6, mode='area')", 1)
    axes = (1, 4, 9)
    case = ModuleCase(module, [("float32", [1, 2, axes, axes])], (NamedDim("d", (("x0", 2), ("x0", 3))),))
    with pytest.raises(InconsistentShapes, match="after lower"):
        build(case, engines=False)


def test_points_are_the_requested_point_both_ends_and_at_least_one_point_between() -> None:
    program = exported("x0 * 2")
    sizes = [tuple(point.values()) for point in points_of(program, [[5]])]
    assert sizes[0] == (5,) and {(1,), (8,)} <= set(sizes)
    assert any(1 < number < 8 for (number,) in sizes[1:])


@pytest.mark.parametrize(
    "body",
    [
        "x0.chunk(2, 1)[0] * 2",  # an unused result
        "F.batch_norm(x0, torch.zeros(4), torch.ones(4))",  # kernels return different unused results
        "torch.special.zeta(x0.abs() + 2, torch.tensor(1.5))",  # an operator of torch.ops.prims with a scalar tensor
        "x0[x0[:, 0] > 0].sum(0)",  # a size that depends on data
        "torch.cond(x0.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x0,))",
        "(torch.arange(x0.shape[0], device=x0.device)[:, None] + x0)",
        "x0.reshape(-1, 2).t().contiguous().view(2, -1)",
    ],
)
def test_accepts_programs_whose_declared_sizes_are_right(body: str) -> None:
    program = exported(body)
    assert first_difference(program, points_of(program)) is None
