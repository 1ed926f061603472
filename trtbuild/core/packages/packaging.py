"""The contents of a package, its recipe and its index, as pure functions.

Rules
1. Names of inputs, outputs, dims and profiles come from the manifest. They belong to the package, not to an engine.
2. The recipe of a package has its contents; it names engines by their keys.
3. The index has the size and SHA-256 of every file, so that a loader can verify all files before it uses any.
4. A package with ``reference`` has the programs of all partitions and all weights, so it can run without engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.binding import Interface
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.key_fields import settings_of
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.encoding import Shared, Value

SCHEMA = "trtbuild.package/1"

#: The file with the table of names (`name_table`).
NAMES = "names.json"


@dataclass(frozen=True)
class Cut:
    """The partitions for the targets of one toolchain, and the programs of partitions that the package contains.

    `programs` is by graph digest. It has the programs of the Torch partitions, and with ``reference`` those of all."""

    partitions: Partitions
    programs: Mapping[str, Output]


@dataclass(frozen=True)
class Engine:
    """One engine of a package: its key, and its plan and layer information, None until the engine is built."""

    partition: str
    target: str
    key: str
    plan: Output | None = None
    layers: Output | None = None


@dataclass(frozen=True)
class Contents:
    """Everything that a package is made from."""

    model: Model
    shapes: ShapePlan
    interface: Interface
    weights: Sequence[Weight]
    modules: Output
    cuts: Mapping[str, Cut]  # target name → cut
    engines: Sequence[Engine]
    toolchains: Mapping[str, str]  # target name → exact version
    origins: Mapping[str, str]  # graph digest → digest of the conversion's origins
    sms: Mapping[str, Sequence[int]]  # target name → the SMs that its plans hold code for

    def recipe(self) -> Recipe:
        """The package step's recipe."""
        parts: list[tuple[str, Value]] = [
            ("model", self.model.name),
            ("inputs", [dict(entry) for entry in self._inputs()]),
            ("outputs", [dict(entry) for entry in self.interface.outputs]),
            ("output tree", self.interface.output_tree),
            ("dims", self._dims()),
            ("profiles", self._profiles()),
            ("precision", self.model.precision),
            ("targets", self._targets()),
            ("partitions", self._cuts()),
            ("engines", {f"{engine.partition}@{engine.target}": engine.key for engine in self.engines}),
            ("weights", self._kept_weights()),
            ("modules", self.modules.sha256),
            ("origins", dict(self.origins)),
            ("reference", self.model.reference),
        ]
        return Recipe("package", STEP_VERSIONS["package"], tuple(parts))

    def blobs(self) -> dict[str, str]:
        """The blobs of the package's programs and weights: digest → ``program`` or ``weight``."""
        found = {output.sha256: "program" for cut in self.cuts.values() for output in cut.programs.values()}
        for entry in self._kept_weights().values():
            found[entry["sha256"]] = "weight"
        return found

    def index(self, names: Output) -> dict[str, Any]:
        """The package's index. All engines must be built; `names` is the file with the table of names of all targets."""
        files: dict[str, dict[str, object]] = {NAMES: names.to_json()}
        plans: dict[str, dict[str, str]] = {}
        layers: dict[str, dict[str, str]] = {}
        for engine in self.engines:
            if engine.plan is None or engine.layers is None:
                raise AssertionError("a package is put together after its engines")
            path = f"engines/{engine.target}/{engine.partition}"
            files[f"{path}.plan"] = engine.plan.to_json()
            files[f"{path}.layers.json"] = engine.layers.to_json()
            plans.setdefault(engine.target, {})[engine.partition] = f"{path}.plan"
            layers.setdefault(engine.target, {})[engine.partition] = f"{path}.layers.json"
        for cut in self.cuts.values():
            for output in cut.programs.values():
                files[self.model.source.graph.program_path(output.sha256)] = output.to_json()
        weights = self._kept_weights()
        for entry in weights.values():
            files[weight_path(entry["sha256"])] = {"sha256": entry["sha256"], "size": _size(entry)}
        return {
            "schema": SCHEMA,
            "model": self.model.name,
            "inputs": self._inputs(),
            "outputs": [dict(entry) for entry in self.interface.outputs],
            "output_tree": self.interface.output_tree,
            "dims": self._dims(),
            "profiles": self._profiles(),
            "precision": self.model.precision,
            "targets": {
                name: {
                    **entry,
                    "partitions": self._cut(self.cuts[name]),
                    "engines": plans.get(name, {}),
                    "layers": layers.get(name, {}),
                }
                for name, entry in self._targets().items()
            },
            "reference": self.model.reference,
            "weights": weights,
            "files": files,
        }

    def _inputs(self) -> list[dict[str, Any]]:
        return [
            {
                **dict(traced),
                "name": declared.name,
                "keyword": declared.keyword,
                # left out if there is no range, so that packages without ranges keep their keys
                **({} if declared.range is None else {"range": list(declared.range)}),
            }
            for declared, traced in zip(self.model.inputs, self.interface.inputs, strict=True)
        ]

    def _dims(self) -> list[dict[str, Any]]:
        return [
            {"name": symbol.name, "min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
            for symbol in self.shapes.symbols
        ]

    def _profiles(self) -> list[dict[str, Any]]:
        return [
            {"name": profile.name, "shapes": {name: _lists(vars(shape)) for name, shape in profile.shapes}}
            for profile in self.model.profiles
        ]

    def _targets(self) -> dict[str, dict[str, Any]]:
        return {
            target.name: {
                **_target(target),
                "version": self.toolchains[target.name],
                "sms": list(self.sms[target.name]),
                "version_compatible": self.model.builder.version_compatible,
                # left out if it is False, so that packages from before this field keep their keys
                **({"exclude_lean_runtime": True} if self.model.builder.exclude_lean_runtime else {}),
            }
            for target in self.model.targets
        }

    def _cuts(self) -> dict[str, Value]:
        """The document of each target's cut. Targets with the same cut share one document, which is encoded once."""
        documents: dict[int, Shared] = {}
        return {
            name: documents[id(cut)] if id(cut) in documents else documents.setdefault(id(cut), Shared(self._cut(cut)))
            for name, cut in self.cuts.items()
        }

    def _cut(self, cut: Cut) -> dict[str, Any]:
        return {
            **cut.partitions.to_json(),
            "programs": {graph: output.sha256 for graph, output in cut.programs.items()},
        }

    def _kept_weights(self) -> dict[str, dict[str, Any]]:
        """Slot → name, dtype, shape and digest of each weight that the package needs.

        They are the weights of partitions in PyTorch, and weights that are inputs of a partition or outputs of the
        model."""
        slots: set[int] = set()
        for cut in {id(cut): cut for cut in self.cuts.values()}.values():
            for partition in cut.partitions.partitions:
                if partition.kind == "torch" or self.model.reference:
                    slots.update(partition.weights)
                references = [source for source, _ in partition.inputs]
                slots.update(int(ref[7:]) for ref in references if ref.startswith("weight:"))
            slots.update(int(ref[7:]) for ref in cut.partitions.outputs if ref.startswith("weight:"))
        return {
            str(slot): {
                "name": self.interface.slots[slot].name,
                "dtype": self.weights[slot].dtype,
                "shape": list(self.weights[slot].shape),
                "sha256": self.weights[slot].sha256,
            }
            for slot in sorted(slots)
        }


def weight_path(sha256: str) -> str:
    """The path of a weight's file in a package."""
    return f"weights/{sha256[:32]}"


def name_table(
    cut: Cut, modules: Sequence[Sequence[str]], origins: Mapping[str, Sequence[Sequence[Any]]]
) -> dict[str, dict[str, list[str]]]:
    """For each TensorRT partition: ONNX node name → module path and operator. `origins` is by graph digest."""
    table = {}
    for partition in cut.partitions.partitions:
        if partition.kind != "tensorrt":
            continue
        names = {}
        for node, call in origins.get(partition.graph, ()):
            whole = partition.calls[call]
            if whole >= 0:
                names[node] = list(modules[whole][:2])
        table[partition.name] = names
    return table


def _target(target: Target) -> dict[str, Any]:
    return dict(settings_of(target))


def _lists(shape: Mapping[str, Any]) -> dict[str, list[int]]:
    return {which: list(sizes) for which, sizes in shape.items()}


def _size(entry: Mapping[str, Any]) -> int:
    size = ELEMENT_TYPES[entry["dtype"]].itemsize
    for length in entry["shape"]:
        size *= length
    return size
