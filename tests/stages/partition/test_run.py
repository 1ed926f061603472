"""Partitioning with a fake parser: refused operators, small pieces, full compilation, and options of the user."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.errors import ConversionRefused, ToolchainError
from trtbuild.stages.partition.run import Refusal

X = torch.linspace(-2, 3, 24).reshape(4, 6)
BATCH = [{0: Dim("batch", min=1, max=9)}]


def chain(x: torch.Tensor) -> torch.Tensor:
    return x.relu().tanh().cumsum(0).exp().sigmoid()


class Blocks(nn.Module):
    """Two equal modules with a cumulative sum between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x).cumsum(0))


@pytest.fixture(scope="module")
def chained(lowered: Any) -> Any:
    return lowered(chain, X)


@pytest.fixture(scope="module")
def blocks(lowered: Any) -> Any:
    return lowered(Blocks(), X)


def test_an_accepted_model_is_one_engine(chained: Any, fake_validator: Any) -> None:
    validator = fake_validator()
    partitioned = chained.partition(validator, min_block_size=50)
    assert (partitioned.names, partitioned.kinds, len(validator.validated_texts)) == (["model"], ["tensorrt"], 1)


def test_a_refused_operator_becomes_a_torch_partition(lowered: Any, fake_validator: Any) -> None:
    model = lowered(chain, X, dims=BATCH)
    validator = fake_validator(refused={"aten.cumsum.default": "no cumulative sums"})
    partitioned = model.partition(validator).assert_valid_document().assert_same_results_as_unpartitioned([X], [X[:1]])
    assert partitioned.kinds == ["tensorrt", "torch", "tensorrt"]
    assert partitioned["p1"].reasons == {"aten.cumsum.default": "no cumulative sums"}
    assert len(validator.validated_texts) == 3  # the whole model, then both halves


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_the_mean_of_an_empty_tensor_stays_in_torch(lowered: Any, in_a_branch: bool) -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return x[:0].mean(0)

    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, mean, lambda y: y[0] + 1, (x,))

    partitioned = lowered(either if in_a_branch else mean, torch.ones(2, 3)).partition()
    (reasons,) = [entry.reasons for entry in partitioned.partitions if entry.kind == "torch"]
    operator = "higher_order.cond" if in_a_branch else "aten.mean.dim"
    assert reasons == {operator: "computes values from a tensor without elements"}


def test_an_operator_that_the_manifest_keeps_in_torch_stays_there_in_a_branch(lowered: Any) -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.cumsum(0), lambda y: y + 1, (x,))

    partitioned = lowered(either, torch.ones(2, 3)).partition(torch_executed_ops=("aten.cumsum",))
    (reasons,) = [entry.reasons for entry in partitioned.partitions if entry.kind == "torch"]
    assert reasons == {"higher_order.cond": "in torch_executed_ops"}


def test_an_operator_without_a_translation_is_never_a_candidate(chained: Any, fake_validator: Any) -> None:
    validator = fake_validator(untranslatable=frozenset({"aten.cumsum.default"}))
    partitioned = chained.partition(validator).assert_same_results_as_unpartitioned()
    assert partitioned["p1"].reasons == {"aten.cumsum.default": "aten.cumsum.default has no translation"}
    assert len(validator.validated_texts) == 2 and not any("cumsum" in text for text in validator.validated_texts)


def test_a_refusal_without_nodes_makes_the_whole_candidate_torch(chained: Any, fake_validator: Any) -> None:
    validator = fake_validator(refused_whole=frozenset({"aten.exp.default"}))
    partitioned = chained.partition(
        validator, torch_executed_ops=("aten.cumsum",)
    ).assert_same_results_as_unpartitioned()
    assert partitioned.kinds == ["tensorrt", "torch"]
    assert partitioned["p1"].reasons == {
        "aten.cumsum.default": "in torch_executed_ops",
        "aten.exp.default": "refused as a whole",
        "aten.sigmoid.default": "refused as a whole",
    }


def test_operators_that_are_refused_one_by_one_all_go_to_torch(chained: Any, fake_validator: Any) -> None:
    """This parser stops at the first node that it refuses. So each round finds one more refused operator."""

    class OneByOne(fake_validator):  # type: ignore[misc]
        def refusal(self, program: Any, text: str) -> Any:
            answer = super().refusal(program, text)
            if answer is None:
                return None
            first = next(iter(answer.nodes))
            return Refusal(answer.text, {first: answer.nodes[first]})

    names = ("relu", "tanh", "cumsum", "exp", "sigmoid")
    validator = OneByOne(refused={f"aten.{name}.default": name for name in names})
    partitioned = chained.partition(validator).assert_same_results_as_unpartitioned()
    assert partitioned.kinds == ["torch"] and partitioned.names == ["model"]
    assert list(partitioned["model"].reasons.values()) == list(names)


def test_an_error_of_the_validator_is_raised(chained: Any, fake_validator: Any) -> None:
    class Broken(fake_validator):  # type: ignore[misc]
        def refusal(self, program: Any, text: str) -> Any:
            raise ToolchainError("the parser died")

    with pytest.raises(ToolchainError, match="the parser died"):
        chained.partition(Broken())


def test_equal_structures_are_validated_once(blocks: Any, fake_validator: Any) -> None:
    validator = fake_validator()
    partitioned = blocks.partition(validator, granularity=("blocks.*",))
    assert partitioned.names == ["blocks.0", "p1", "blocks.1"]
    assert partitioned["blocks.0"].graph == partitioned["blocks.1"].graph
    assert len(validator.validated_texts) == len(set(validator.validated_texts)) == 2


def test_a_refusal_applies_to_every_equal_structure(blocks: Any, fake_validator: Any) -> None:
    validator = fake_validator(refused={"aten.gelu.default": "no"})
    partitioned = blocks.partition(validator, granularity=("blocks.*",)).assert_same_results_as_unpartitioned()
    assert not any(
        "gelu" in name
        for entry in partitioned.partitions
        if entry.kind == "tensorrt"
        for name in partitioned.operators(entry.name)
    )
    assert sum("aten.gelu.default" in entry.reasons for entry in partitioned.partitions) == 2


def test_a_refused_size_moves_only_its_readers_to_torch(lowered: Any, fake_validator: Any) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() * (x.shape[0] * 3 + 1)).tanh()

    model = lowered(scaled, X, dims=BATCH)
    for kind in ("refused", "untranslatable"):
        refusals = {"_operator.add": "no sums"} if kind == "refused" else frozenset({"_operator.add"})
        partitioned = (
            model.partition(fake_validator(**{kind: refusals}))
            .assert_valid_document()
            .assert_same_results_as_unpartitioned([X], [X[:1]])
        )
        assert partitioned.kinds == ["tensorrt", "torch", "tensorrt"]
        assert list(partitioned["p1"].reasons) == ["aten.mul.Tensor"]


# -- min_block_size


def test_small_pieces_of_a_split_model_stay_in_torch(chained: Any) -> None:
    partitioned = chained.partition(
        torch_executed_ops=("aten.cumsum",), min_block_size=3
    ).assert_same_results_as_unpartitioned()
    assert partitioned.kinds == ["torch"]
    assert partitioned["model"].reasons["aten.relu.default"] == "in a piece smaller than min_block_size 3"
    assert chained.partition(torch_executed_ops=("aten.cumsum",), min_block_size=2).kinds == [
        "tensorrt",
        "torch",
        "tensorrt",
    ]


def test_min_block_size_keeps_a_whole_model(lowered: Any) -> None:
    assert lowered(lambda x: x.relu(), X).partition(min_block_size=5).kinds == ["tensorrt"]


def test_min_block_size_keeps_a_whole_match_of_granularity(blocks: Any) -> None:
    partitioned = blocks.partition(granularity=("blocks.*",), torch_executed_ops=("aten.cumsum",), min_block_size=50)
    assert partitioned.kinds == ["tensorrt", "torch", "tensorrt"]


def test_min_block_size_applies_to_the_pieces_of_a_split_match(blocks: Any) -> None:
    partitioned = blocks.partition(
        granularity=("blocks.*",), torch_executed_ops=("aten.gelu",), min_block_size=2
    ).assert_same_results_as_unpartitioned()
    assert set(partitioned.kinds) == {"torch"}


def test_min_block_size_keeps_small_engines_if_no_part_is_torch(blocks: Any) -> None:
    partitioned = blocks.partition(granularity=("blocks.*",), min_block_size=50)
    assert partitioned.kinds == ["tensorrt"] * 3


# -- torch_executed_ops


@pytest.mark.parametrize(
    "name", ["aten.cumsum", "aten.cumsum.default", "torch.ops.aten.cumsum", "torch.ops.aten.cumsum.default"]
)
def test_torch_executed_ops_accepts_names_with_or_without_overload(name: str, chained: Any) -> None:
    partitioned = chained.partition(torch_executed_ops=(name,))
    assert [list(entry.reasons) for entry in partitioned.partitions] == [[], ["aten.cumsum.default"], []]


@pytest.mark.parametrize("name", ["cumsum", "aten.cumsum_", "aten.cumsum.out"])
def test_torch_executed_ops_ignores_names_that_match_no_call(name: str, chained: Any) -> None:
    assert chained.partition(torch_executed_ops=(name,)).kinds == ["tensorrt"]


def test_torch_executed_ops_can_list_one_of_several_overloads(lowered: Any) -> None:
    model = lowered(lambda x: (x * x).cumsum(0).max(1).values.max(), X)
    partitioned = model.partition(torch_executed_ops=("aten.max.dim",)).assert_same_results_as_unpartitioned()
    assert [list(entry.reasons) for entry in partitioned.partitions] == [[], ["aten.max.dim"], []]
    assert set(model.partition(torch_executed_ops=("aten.max",)).partitions[-1].reasons) == {
        "aten.max.dim",
        "aten.max.default",
    }


# -- require_full_compilation


def test_full_compilation_accepts_a_model_of_one_engine(chained: Any) -> None:
    assert chained.partition(require_full_compilation=True).kinds == ["tensorrt"]


def test_full_compilation_lists_operator_module_and_reason(blocks: Any, fake_validator: Any) -> None:
    validator = fake_validator(refused={"aten.gelu.default": "not in this parser"})
    with pytest.raises(ConversionRefused) as caught:
        blocks.partition(
            validator, require_full_compilation=True, torch_executed_ops=("aten.cumsum",), min_block_size=9
        )
    lines = [line.strip() for line in caught.value.text.splitlines()[1:]]
    assert lines == [
        "aten.gelu.default in blocks.0.1: not in this parser",
        "aten.cumsum.default in the root module: in torch_executed_ops",
        "aten.gelu.default in blocks.1.1: not in this parser",
    ]
    assert "require_full_compilation: false" in (caught.value.hint or "")
