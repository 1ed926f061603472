"""Lowered models, a fake validator that refuses chosen operators, and functions that partition models and run them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.lower.run import lower
from trtbuild.stages.partition.document import PartitionResult
from trtbuild.stages.partition.run import Refusal, partition
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import program_text, target_name
from trtbuild.stages.program.translations import decomposition_table

Tensors = Sequence[torch.Tensor]


@dataclass
class FakeValidator:
    """Refuses operators by their names, so that the tests need neither the exporter nor a parser."""

    #: Refused operator → the reason.
    refused: Mapping[str, str] = field(default_factory=dict)
    #: A piece of the graph is refused as a whole if it calls one of these operators.
    refused_whole: frozenset[str] = frozenset()
    #: Operators without an ONNX translation.
    untranslatable: frozenset[str] = frozenset()
    #: The canonical texts of the pieces that the partition step asked about.
    validated_texts: list[str] = field(default_factory=list)

    def untranslatable_calls(self, program: Program) -> dict[int, str]:
        return {k: f"{name} has no translation" for k, name in _calls(program) if name in self.untranslatable}

    def refusal(self, program: Program, text: str) -> Refusal | None:
        assert text == program_text(program)
        self.validated_texts.append(text)
        if any(name in self.refused_whole for _, name in _calls(program)):
            return Refusal("refused as a whole", {})
        nodes = {k: self.refused[name] for k, name in _calls(program) if name in self.refused}
        return Refusal("some are refused", nodes) if nodes else None


def _calls(program: Program) -> Iterable[tuple[int, str]]:
    """(position, operator) of each call."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [(number, target_name(node.target)) for number, node in enumerate(nodes)]


@dataclass
class PartitionedModel:
    """A model and the result of its partitioning."""

    model: Model
    result: PartitionResult

    @property
    def document(self) -> Partitions:
        return self.result.document

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.result.document.partitions

    @property
    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.partitions]

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.partitions]

    def __getitem__(self, name: str) -> Partition:
        """The partition with this name."""
        (entry,) = [entry for entry in self.partitions if entry.name == name]
        return entry

    def operators(self, name: str) -> list[str]:
        """The names of the operators of a partition, without sizes and getitems."""
        names = [name for _, name in _calls(self.result.programs[self[name].graph])]
        return [name for name in names if not name.startswith(("_operator.", "aten.sym_size"))]

    def values(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Name, such as ``input:0`` → value: the model's weights and inputs, and the results of each partition.

        Raises KeyError if a partition needs a result of a later partition."""
        values = {f"weight:{slot}": value for slot, value in enumerate(self.model.weights)}
        values |= {f"input:{number}": value for number, value in enumerate(inputs)}
        for entry in self.partitions:
            weights = [self.model.weights[slot] for slot in entry.weights]
            results = run_program(self.result.programs[entry.graph], weights, [values[s] for s, _ in entry.inputs])
            for number, value in enumerate(results):
                assert f"{entry.name}:{number}" not in values
                values[f"{entry.name}:{number}"] = value
        return values

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        with torch.no_grad():
            values = self.values(inputs)
        return [values[source] for source in self.document.outputs]

    def assert_same_results_as_unpartitioned(self, *cases: Tensors) -> PartitionedModel:
        """Fail unless the partitions together compute the same values as the whole program, for each case of inputs.

        NaN counts as 0, and infinities as the largest finite numbers."""
        for inputs in cases or [self.model.example]:
            expected_outputs = self.model.run(inputs)
            outputs = self.run(inputs)
            assert len(expected_outputs) == len(outputs)
            for expected, output in zip(expected_outputs, outputs, strict=True):
                assert expected.dtype == output.dtype and expected.shape == output.shape
                assert torch.equal(expected.nan_to_num(), output.nan_to_num())
        return self

    def assert_valid_document(self, *, with_storage: bool = True) -> PartitionedModel:
        """Fail unless document and programs agree. With `with_storage`, also store and load the programs, which is slow."""
        for entry in self.partitions:
            program = self.result.programs[entry.graph]
            text = program_text(program)
            assert hashlib.sha256(text.encode()).hexdigest() == entry.graph
            if with_storage:
                assert program_text(Program.from_bytes(program.to_bytes())) == text, "the text does not survive storing"
            assert program.weights == len(entry.weights) and len(set(entry.weights)) == len(entry.weights)
            assert len(program.input_nodes) == len(entry.inputs)
            assert len({source for source, _ in entry.inputs}) == len(entry.inputs)
            assert len(program.output_nodes) == len(entry.outputs) > 0
            assert len(_calls(program)) == len(entry.calls)
            assert bool(entry.reasons) == (entry.kind == "torch") and all(entry.reasons.values())
            for node in [*program.input_nodes, *program.output_nodes]:
                assert isinstance(node.meta["val"], torch.Tensor), "an input or output of a partition is a number"
        assert Partitions.from_bytes(self.document.to_bytes()) == self.document
        return self


def run_program(program: Program, weights: Tensors, inputs: Tensors) -> list[torch.Tensor]:
    """Run a functional program.

    ``exported.module()`` would reject an input of size ``(s - 1) // 2 + 1``, because it cannot solve this expression for
    ``s``. Many tensors between two partitions have such a size.
    """
    constants = program.constants
    others = iter([*weights, *inputs])  # the placeholders that are not constants, in their order
    arguments = [constants[node.name] if node.name in constants else next(others) for node in program.placeholders]
    return list(program.exported.graph_module(*arguments))


@dataclass
class Model:
    """A lowered program, the values of its weights, and example inputs."""

    program: Program
    weights: list[torch.Tensor]
    example: Tensors

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        with torch.no_grad():
            return run_program(self.program, self.weights, inputs)

    def partition(self, validator: Any = None, **settings: Any) -> PartitionedModel:
        """Partition the model. By default, even a piece with one operator becomes an engine (`min_block_size` 1)."""
        chosen = PartitionSettings(**{"min_block_size": 1, **settings})
        return PartitionedModel(self, partition(self.program, chosen, validator or FakeValidator()))

    @property
    def operators(self) -> list[str]:
        return [name for _, name in _calls(self.program)]


class FunctionModule(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def _mutates(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def lower_model(
    module: torch.nn.Module | Callable[..., Any], *example: torch.Tensor, dims: Sequence[Mapping[int, Any]] = ()
) -> Model:
    """Export a module with `dims` for each input, and lower it in float32. The program is then stored and loaded."""
    if not isinstance(module, torch.nn.Module):
        module = FunctionModule(module)
    shapes: Any = tuple(dict(entry) for entry in dims) or tuple({} for _ in example)
    if isinstance(module, FunctionModule):
        shapes = (shapes,)
    with torch.no_grad():
        exported = export(module.eval(), tuple(example), dynamic_shapes=shapes, strict=False)
        if any(_mutates(node) for node in exported.graph.nodes):
            # The trace step functionalizes every program. Here only programs with writes are functionalized, to save time.
            exported = exported.run_decompositions({})
        program, slots = functional(exported)
        lowered = lower(program, "float32", decomposition_table())
    values = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    weights = [values[slot.name].detach() for slot in slots]
    return Model(Program.from_bytes(lowered.to_bytes()), weights, example)


@pytest.fixture(scope="session")
def lowered() -> Callable[..., Model]:
    """The function `lower_model`."""
    return lower_model


@pytest.fixture(scope="session")
def model_of() -> type[Model]:
    return Model


@pytest.fixture(scope="session")
def fake_validator() -> type[FakeValidator]:
    return FakeValidator


@pytest.fixture(scope="session")
def seed_program() -> Program:
    """A program with two inputs (batch, length, 4), with batch 1..6 and length 3..9.

    Tests create other graphs from the fake values of these inputs, because that is faster than an export."""
    dims = [{0: Dim("batch", min=1, max=6), 1: Dim("length", min=3, max=9)}] * 2
    example = torch.rand(3, 5, 4)
    return lower_model(lambda x, y: x + y, example, example, dims=dims).program
