"""The built examples. onnxruntime or PyTorch runs their partitions, and `Example.run_eager` runs the original model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.utils._pytree as pytree

from tests.conftest import BuiltExamples
from tests.imports import import_from
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan, profile_sizes
from trtbuild.core.model.spec import Model
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.recipes.record import Record
from trtbuild.manifest import load
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.program.functional import Program
from trtbuild.store.local.local import LocalStore

#: The target whose engine steps name the ONNX models. Any target will do: these models are the same for all targets.
TARGET = "ada"

#: Integer input → the exclusive upper limit of its values, which begin with 0.
INTEGER_LIMITS = {"input_ids": 1000, "attention_mask": 2, "ids": 100}

Tensors = Mapping[str, torch.Tensor]
Runner = Callable[[Partition, Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Point:
    """The min, opt or max of a profile: `which` is one of these words."""

    profile: str
    which: str

    def __str__(self) -> str:
        return f"{self.profile}-{self.which}"


class Example:
    """One example model, with the results of its steps from the store."""

    def __init__(self, name: str, built: BuiltExamples) -> None:
        self.name = name
        self._built = built
        self._store = LocalStore(built.cache)
        models = {model.name: model for model in load(built.project).models}
        self.model: Model = models[name]
        plan, _ = derive(self.model.inputs, self.model.dims, self.model.profiles)
        assert plan is not None
        self.shapes: ShapePlan = plan

    def record(self, step: str) -> Record:
        """The record of one of the model's steps, such as ``engine/p0@ada``."""
        record = self._store.get_record(self._built.key(f"{self.name}/{step}"))
        assert record is not None
        return record

    def output(self, step: str, name: str) -> bytes:
        return self._store.get_bytes(self.record(step).outputs[name].sha256)

    @functools.cached_property
    def partitions(self) -> Partitions:
        return Partitions.from_bytes(self.output("partition", "partitions"))

    @property
    def points(self) -> Iterator[tuple[Point, tuple[int, ...]]]:
        """Each profile's min, opt and max, with the size of each dynamic dim (symbol) there."""
        for profile in self.model.profiles:
            for which in ("min", "opt", "max"):
                yield Point(profile.name, which), profile_sizes(self.shapes, profile, which)

    def inputs(self, sizes: Sequence[int]) -> dict[str, torch.Tensor]:
        tensors = {}
        generator = torch.Generator().manual_seed(hash(tuple(sizes)) % 2**31)
        for entry, shape in zip(self.model.inputs, self.shapes.input_shapes(sizes), strict=True):
            if entry.dtype.startswith("int"):
                tensors[entry.name] = torch.randint(INTEGER_LIMITS[entry.name], shape, generator=generator)
            else:
                tensors[entry.name] = torch.randn(shape, generator=generator)
        return tensors

    # -- the eager model

    @functools.cached_property
    def eager(self) -> Callable[..., Any]:
        """The original model. If its source is an ONNX file, onnxruntime runs the whole file."""
        source = self.model.source
        if source.kind == "torchscript":
            return torch.jit.load(self._built.project / source.target)
        if source.kind == "onnx":
            return self._by_onnxruntime(self._built.project / source.target)
        if source.kind == "exported_program":
            return torch.export.load(self._built.project / source.target).module()
        module, _, name = source.target.partition(":")
        builder = getattr(import_from(self._built.project / source.roots[0], module), name)
        return builder(**source.kwargs)

    def _by_onnxruntime(self, file: Path) -> Callable[..., list[torch.Tensor]]:
        """Return a function that runs the whole source file in onnxruntime."""
        session = onnxruntime.InferenceSession(file)
        names = [entry.name for entry in self.model.inputs]

        def run(*values: torch.Tensor) -> list[torch.Tensor]:
            feeds = {name: value.numpy() for name, value in zip(names, values, strict=True)}
            return [torch.from_numpy(np.asarray(value)) for value in session.run(None, feeds)]

        return run

    def run_eager(self, inputs: Tensors) -> list[torch.Tensor]:
        positional = [inputs[entry.name] for entry in self.model.inputs if not entry.keyword]
        named = {entry.name: inputs[entry.name] for entry in self.model.inputs if entry.keyword}
        with torch.no_grad():
            result = self.eager(*positional, **named)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    # -- the partitions

    @functools.cached_property
    def weights(self) -> list[torch.Tensor]:
        """The weights of the traced program, in the order in which they are its inputs."""
        table = json.loads(self.output("trace", "weights"))
        weights = []
        for slot in range(len(table)):
            entry = table[str(slot)]
            data = bytearray(self._store.get_bytes(entry["sha256"]))
            weights.append(torch.frombuffer(data, dtype=getattr(torch, entry["dtype"])).reshape(entry["shape"]))
        return weights

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the examples live as long as the test session
    def _program(self, graph: str) -> Program:
        return Program.from_bytes(self.output("partition", f"program:{graph}"))

    def in_torch(self, part: Partition, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results of a partition: PyTorch computes them, or onnxruntime if the model has no PyTorch program."""
        if self.model.source.graph.reference != "torch":
            return self.in_onnx(part, inputs)
        program = self._program(part.graph)
        constants = program.constants
        remaining = iter([*(self.weights[slot] for slot in part.weights), *inputs])
        arguments = [
            constants[node.name] if node.name in constants else next(remaining) for node in program.placeholders
        ]
        with torch.no_grad():
            return list(program.exported.graph_module(*arguments))

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the examples live as long as the test session
    def _session(self, name: str) -> onnxruntime.InferenceSession:
        """A session of onnxruntime with the ONNX model and the weights that the engine's recipe names."""
        parts = dict(self.record(f"engine/{name}@{TARGET}").recipe.parts)
        weights = {weight: self._store.get_bytes(entry["sha256"]) for weight, entry in parts["weights"].items()}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        model = with_inline_weights(self._store.get_bytes(str(parts["onnx"])), weights)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def in_onnx(self, part: Partition, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results of a partition: onnxruntime computes TensorRT partitions, PyTorch computes Torch partitions."""
        if part.kind == "torch":
            return self.in_torch(part, inputs)
        session = self._session(part.name)
        feeds = {f"i{k}": value.contiguous().numpy() for k, value in enumerate(inputs)}
        names = [f"o{k}" for k in range(len(part.outputs))]
        return [torch.from_numpy(np.asarray(value)) for value in session.run(names, feeds)]

    def values(self, inputs: Tensors, runner: Runner) -> dict[str, torch.Tensor]:
        """Run the partitions with `runner`. Return the weights, the model's inputs and all results, by name."""
        values = {f"weight:{slot}": value for slot, value in enumerate(self.weights)}
        values |= {f"input:{k}": inputs[entry.name] for k, entry in enumerate(self.model.inputs)}
        for part in self.partitions.partitions:
            results = runner(part, [values[source] for source, _ in part.inputs])
            values |= {f"{part.name}:{k}": value for k, value in enumerate(results)}
        return values

    def run_partitions(self, inputs: Tensors, runner: Runner | None = None) -> list[torch.Tensor]:
        """The outputs of the model, computed partition by partition. `runner` is `in_onnx` by default."""
        values = self.values(inputs, runner or self.in_onnx)
        return [values[source] for source in self.partitions.outputs]


def example_names(*, only_computable: bool = False) -> list[str]:
    """The names of the models in manifests/. With `only_computable`, only those that PyTorch or onnxruntime can compute."""
    models = load(Path(__file__).parents[2], sorted_manifests()).models
    return [model.name for model in models if not (only_computable and model.source.graph.reference is None)]


def sorted_manifests() -> list[str]:
    """The manifests, as a build in this repository finds them."""
    root = Path(__file__).parents[2]
    return [f"manifests/{path.name}" for path in sorted((root / "manifests").glob("*.yaml"))]


def relative_difference(computed: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected value. For bools and integers, it is 0 or infinite."""
    assert computed.dtype == expected.dtype and computed.shape == expected.shape, (
        f"{computed.dtype}{computed.shape} {expected.dtype}{expected.shape}"
    )
    if not computed.is_floating_point():
        return 0.0 if torch.equal(computed, expected) else float("inf")
    assert not computed.isnan().any() and not expected.isnan().any()
    if not computed.numel():
        return 0.0
    scale = expected.double().abs().max().clamp_min(1e-30)
    return float((computed.double() - expected.double()).abs().max() / scale)


@pytest.fixture(scope="session")
def find_example(built_examples: BuiltExamples) -> Callable[[str], Example]:
    """A function that returns the example of a given name. It returns the same object for each call with this name."""
    examples: dict[str, Example] = {}

    def find(name: str) -> Example:
        if name not in examples:
            examples[name] = Example(name, built_examples)
        return examples[name]

    return find
