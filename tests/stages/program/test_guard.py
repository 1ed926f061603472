"""Rule 14: what is compiled has the sizes of what was traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from torch import nn

from tests.fuzz.comparing import differences
from tests.fuzz.modules import written
from tests.fuzz.pipeline import Case, build
from trtbuild.core.model.spec import NamedDim
from trtbuild.errors import InconsistentShapes
from trtbuild.stages.lower import run as lowering
from trtbuild.stages.partition import run as partitioning
from trtbuild.stages.program import functional, guard
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.guard import read, refuse_changes, signature
from trtbuild.stages.program.sizes import difference, points_of

#: Ranges that torch takes for one size: a dynamic size is not 1 to it.
ROWS = (1, 2, 2)


class Decoder(nn.Module):
    """The middle of a VAE's decoder: group normalization, attention over pixels, and a size computed from two others."""

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
    """A table of positions and a mask, as a BERT has them: sizes go into slices, arange and expand."""

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


def decoder(**settings: Any) -> Case:
    return Case(Decoder().eval(), [("float32", [ROWS, 4, 6, 6])], **settings)


def tokens(**settings: Any) -> Case:
    named = (NamedDim("b", (("x0", 0), ("x1", 0))), NamedDim("s", (("x0", 1), ("x1", 1))))
    axes = [(1, 2, 3), ROWS]
    return Case(Tokens().eval(), [("int64", axes), ("int64", axes)], named, **settings)


PRECISIONS = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", [decoder, tokens])
def test_rule_14_a_range_of_two_sizes_is_right_at_both(case: Callable[..., Case], precision: str) -> None:
    made = case(precision=precision)
    seen = differences(made, build(made))
    assert not seen.differences, seen.differences


@contextlib.contextmanager
def forgetful() -> Iterator[None]:
    """The steps without fixed symbols: torch records its own answers as guards of the program."""
    yield


def old_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (functional, lowering, partitioning):
        monkeypatch.setattr(module, "fixed_symbols", forgetful)


def without_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "refuse_changes", lambda *_, **__: None)
    monkeypatch.setattr(partitioning, "refuse_inconsistency", lambda *_, **__: None)
    monkeypatch.setattr(partitioning, "points_of", lambda program, _: points_of(program))
    monkeypatch.setattr(guard, "read", Program.from_bytes)


@pytest.mark.parametrize(("case", "precision"), [(decoder, "float16"), (tokens, "float32")])
def test_rule_14_the_guard_sees_a_lost_size(
    case: Callable[..., Case], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_steps(monkeypatch)
    with pytest.raises(InconsistentShapes):
        build(case(precision=precision))


def test_rule_14_without_the_guard_the_engine_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard there is no error, and the results at one row are those of another model."""
    old_steps(monkeypatch)
    without_guard(monkeypatch)
    monkeypatch.setattr("trtbuild.driver.workers.handlers.compare_lowered", lambda *_: None)
    case = decoder(precision="float16")
    with contextlib.suppress(RuntimeError):  # a reshape to two rows of what is one
        seen = differences(case, build(case))
        assert seen.differences


def lowered(case: Case, monkeypatch: pytest.MonkeyPatch, change: Callable[[Program], None]) -> None:
    """Build with one more pass."""
    real = lowering.run_passes

    def passes(*arguments: Any) -> Program:
        program = real(*arguments)
        change(program)
        program.exported.graph_module.recompile()
        return program

    monkeypatch.setattr(lowering, "run_passes", passes)
    build(case)


def rows(body: str) -> Case:
    return Case(written([], body, 1), [("float32", [(2, 3, 8), 4])])


def test_rule_14_a_pass_that_writes_a_number_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def freeze(program: Program) -> None:
        for node in program.graph.nodes:
            if "reshape" in str(node.target):
                node.args = (node.args[0], [3, 2, 2])

    with pytest.raises(InconsistentShapes, match=r"after lower, aten\.reshape\.default fails: .*, where d0 = 2"):
        lowered(rows("x0.reshape(x0.shape[0], 2, 2) * 2"), monkeypatch, freeze)


def test_rule_14_a_pass_that_changes_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def cast(program: Program) -> None:
        (output,) = program.output_nodes
        output.meta["val"] = output.meta["val"].to(torch.float16)

    with pytest.raises(
        InconsistentShapes, match=r"lower has made float16\[2, 4\] of output 0, which is float32\[2, 4\]"
    ):
        lowered(rows("x0 * 2"), monkeypatch, cast)


def exported(body: str, axis: tuple[int, int, int] = (1, 3, 8)) -> Program:
    case = Case(written([], body, 1), [("float32", [axis, 4])])
    return build(case).traced


def test_rule_14_symbols_and_ranges_are_the_traced_ones() -> None:
    one, other = exported("x0 * 2"), exported("x0 * 2", (1, 3, 9))
    refuse_changes(one, signature(one), "lower")
    with pytest.raises(InconsistentShapes, match="symbols of the model's inputs"):
        refuse_changes(one, signature(other), "lower")


def test_rule_14_a_program_that_is_read_keeps_its_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported("x0 * 2").to_bytes()
    real = Program.from_bytes

    def forgetting(stored: bytes) -> Program:
        program = real(stored)
        (size, _) = program.input_nodes[0].meta["val"].shape
        size.node.shape_env.replacements[size.node._expr] = sympy.Integer(3)
        return program

    read(data)
    monkeypatch.setattr(Program, "from_bytes", forgetting)
    with pytest.raises(InconsistentShapes, match="replaced by another while it was read"):
        read(data)


@pytest.mark.parametrize("axes", [[8, (2, 3, 4), 8], [(1, 1, 2), (1, 1, 2), 8]])
def test_a_stride_that_torch_writes_in_a_simpler_way(axes: list[Any]) -> None:
    case = Case(written([], "x0.reshape(-1, 8) * 2", 1), [("float32", axes)])
    assert not differences(case, build(case)).differences


def test_points_are_the_ends_and_between_and_what_is_asked_for() -> None:
    program = exported("x0 * 2")
    found = [tuple(point.values()) for point in points_of(program, [[5]])]
    assert found[0] == (5,) and {(1,), (8,)} <= set(found)
    assert any(1 < number < 8 for (number,) in found[1:])


@pytest.mark.parametrize(
    "body",
    [
        "x0.chunk(2, 1)[0] * 2",  # unused results
        "F.batch_norm(x0, torch.zeros(4), torch.ones(4))",  # kernels differ in unused results
        "torch.special.zeta(x0.abs() + 2, torch.tensor(1.5))",  # a prim that takes a number as a tensor here
        "x0[x0[:, 0] > 0].sum(0)",  # a size that data decides
        "torch.cond(x0.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x0,))",
        "(torch.arange(x0.shape[0], device=x0.device)[:, None] + x0)",
        "x0.reshape(-1, 2).t().contiguous().view(2, -1)",
    ],
)
def test_programs_that_are_what_they_say(body: str) -> None:
    program = exported(body)
    assert difference(program, points_of(program)) is None
