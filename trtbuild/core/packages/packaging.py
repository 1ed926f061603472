"""What a package holds: pure functions from what is known of a model to the package's contents and its index.

Rules
1. Names of inputs, outputs, dims and profiles are the manifest's (they belong to the package, not to any engine).
2. The recipe of a package is its contents; engines are in it by their keys.
3. The index lists every file with size and SHA-256, so a loader verifies all before it uses any.
4. A package with ``reference`` has the program of every partition and all weights: it runs without any engine.
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
from trtbuild.core.recipes.keys import STEP_VERSIONS, settings_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.encoding import Shared, Value

SCHEMA = "trtbuild.package/1"

#: The file of the table of names.
NAMES = "names.json"


@dataclass(frozen=True)
class Cut:
    """The partitions that one toolchain's targets share, and by graph the program blob of each partition that the package
    keeps in PyTorch: the Torch partitions, and with ``reference`` all of them."""

    partitions: Partitions
    programs: Mapping[str, Output]


@dataclass(frozen=True)
class Engine:
    """One engine of a package: its key, and its plan and layer information once they are known."""

    partition: str
    target: str
    key: str
    plan: Output | None = None
    layers: Output | None = None


@dataclass(frozen=True)
class Contents:
    """Everything that a package is made of."""

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
        """Digests of the blobs of the package's programs and weights: digest → ``program`` or ``weight``."""
        found = {output.sha256: "program" for cut in self.cuts.values() for output in cut.programs.values()}
        for entry in self._kept_weights().values():
            found[entry["sha256"]] = "weight"
        return found

    def index(self, names: Output) -> dict[str, Any]:
        """The package's index. Every engine is built by now; `names` is the table of names of all targets."""
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
                files[program_path(output.sha256, self.model.source.form)] = output.to_json()
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
                # said only where it is: other packages keep their keys
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
                # said only where it is so: packages from before it was said keep their keys
                **({"exclude_lean_runtime": True} if self.model.builder.exclude_lean_runtime else {}),
            }
            for target in self.model.targets
        }

    def _cuts(self) -> dict[str, Value]:
        """By target. Those that share a cut share its document."""
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
        """slot → name, dtype, shape, digest of each weight that a partition in PyTorch, or an output, needs."""
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


def program_path(sha256: str, form: str = "program") -> str:
    """Where a package has a program, or the model of an ONNX source. By content: two toolchains' cuts may store one graph
    differently."""
    return f"onnx/{sha256[:32]}.onnx" if form == "onnx" else f"torch/{sha256[:32]}.pt2"


def weight_path(sha256: str) -> str:
    """Where a package has a weight's bytes."""
    return f"weights/{sha256[:32]}"


def name_table(
    cut: Cut, modules: Sequence[Sequence[str]], origins: Mapping[str, Sequence[Sequence[Any]]]
) -> dict[str, dict[str, list[str]]]:
    """Per TensorRT partition: ONNX node name → module path and operator. `origins` is by graph digest."""
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


#: Bytes of an element, by dtype (torch's name without the prefix).
ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    "float8_e8m0fnu": 1,
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}


def _size(entry: Mapping[str, Any]) -> int:
    size = ELEMENT_BYTES[entry["dtype"]]
    for length in entry["shape"]:
        size *= length
    return size
