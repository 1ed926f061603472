"""A small model for the tests of core, and `FakeWorld`: the store, the project and the steps that plans need, in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from trtbuild.core.engines.binding import weight_types, weights_to_json
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, PartitionSettings, Profile, ShapeRange, Source, Target
from trtbuild.core.packages.name_table import name_table
from trtbuild.core.packages.package_indexing import package_index
from trtbuild.core.packages.package_writing import index_to_json
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.core.planning.graph import Reason, Step
from trtbuild.core.planning.model_plan import Facts, ModelPlan, ToolchainFacts, plan_model
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import trace_declared
from trtbuild.core.recipes.dependency import ABSENT, Dependency, Observation
from trtbuild.core.recipes.lookup_recipes import with_any_versions
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BlobMissing, EntryCorrupt

#: Turn off Hypothesis's deadline: a test that is slow because the machine is busy must not fail.
settings.register_profile("trtbuild", deadline=None)
settings.load_profile("trtbuild")

ADA = Target("ada", 89)
BLACKWELL = Target("blackwell", 120)
HOPPER = Target("hopper", 90, toolchain="tensorrt")
ROWS = Profile("rows", (("x", ShapeRange((1, 4), (4, 4), (8, 4))),))

VERSIONS = {"python": "3.11", "torch": "2.13.0", "onnx": "1.20.0", "onnxscript": "0.6.0"}
RTX = ToolchainFacts("1.4.0.76", opset=22)
TRT = ToolchainFacts("11.0.0", opset=23, workspace=1 << 30)

#: A source that reads helper.py and has three equal layers. An operator before the last layer runs only in PyTorch.
NET = "read helper.py\nlayer layers.0 linear\nlayer layers.1 linear\ntorch nms nms\nlayer layers.2 linear\n"


def sha(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def value_bytes(value: str) -> bytes:
    """Return the 16 bytes of a weight with four float32 elements. They are a hash of the text `value`."""
    return hashlib.sha256(value.encode()).digest()[:16]


def weight(value: str) -> Weight:
    return Weight("float32", (4,), sha(value_bytes(value)))


def a_model(**changes: Any) -> Model:
    model = Model(
        name="net",
        source=Source("python", "net.py"),
        inputs=(Input("x"),),
        profiles=(ROWS,),
        targets=(ADA,),
        origin=Origin("trtbuild.yaml", 7),
        partition=PartitionSettings(granularity=("layers.*",)),
        outputs=(("package", "dist/net"),),
    )
    return replace(model, **changes)


def shapes_of(model: Model) -> ShapePlan:
    shapes, problems = derive(model.inputs, model.dims, model.profiles)
    assert shapes is not None, problems
    return shapes


def with_opt(model: Model, opt: int) -> Model:
    return replace(model, profiles=(Profile("rows", (("x", ShapeRange((1, 4), (opt, 4), (8, 4))),)),))


class FakeWorld:
    """Implements `core.planning.lookups.Lookups` with dictionaries, and builds models without torch or TensorRT.

    A model's source is a file of lines: ``read FILE``, ``layer PATH OPERATOR``, ``torch PATH OPERATOR``, or a comment.
    Each line ``layer`` or ``torch`` is an operator with one weight. The fake steps compute texts from the blobs that they
    read. So a test fails if a plan runs a step whose input blob does not exist.
    """

    def __init__(self) -> None:
        self.files = {"net.py": NET, "helper.py": "a helper"}
        self.distributions = {"timm": "1.0"}
        self.records: dict[str, Record] = {}
        self.blobs: dict[str, bytes] = {}
        self.history: dict[str, Recipe] = {}  # step id → the recipe of its last build
        self.tables: dict[str, dict[str, Weight]] = {}  # path of a weights file → its weights by name
        self.placed: set[str] = set()  # index digests of the packages whose files are at their paths
        self.damaged: set[str] = set()  # digests of blobs
        self.untrusted: set[str] = set()  # keys of records
        self.forced = False
        self.uncacheable: set[str] = set()  # step ids
        self.versions: Mapping[str, str] | None = VERSIONS  # None on a machine without torch
        self.rtx, self.trt = RTX, TRT
        self.ran: list[str] = []  # the ids of the steps that ran in this build
        self.ran_keys: set[str | None] = set()
        self.observed: list[Dependency] = []
        self.prefetched: list[str] = []  # the keys of recipes that the planner will soon look up

    # -- Lookups

    def record(self, key: str) -> Record | None:
        return None if key in self.untrusted else self.records.get(key)

    def record_of(self, recipe: Recipe) -> Record | None:
        return self.record(recipe.key)

    def source_of(self, key: str) -> str:
        return "local"

    def blob(self, sha256: str) -> bytes:
        if sha256 in self.damaged:
            raise EntryCorrupt(sha256)
        if sha256 not in self.blobs:
            raise BlobMissing(sha256)
        return self.blobs[sha256]

    def has_blob(self, sha256: str) -> bool:
        return sha256 in self.blobs

    def observe(self, dependency: Dependency) -> str:
        self.observed.append(dependency)
        if dependency.kind == "distribution":
            return self.distributions.get(dependency.name, ABSENT)
        return sha(self.files[dependency.name]) if dependency.name in self.files else ABSENT

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        record = self.record(recipe.key)
        return None if record is None else chain.parse_link(self.blob(record.outputs["next"].sha256))

    def last_recipe(self, step: str) -> Recipe | None:
        return self.history.get(step)

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        return None if model.weights is None else self.tables[model.weights]

    def plugin_library(self, model: Model, versions: Mapping[Target, str]) -> Output | None:
        return None

    def announced_recipe(self, step: str) -> Recipe | None:
        return None

    def why_forced_to_run(self, step: str, key: str) -> Reason | None:
        if step in self.ran or key in self.ran_keys:
            return None
        if step in self.uncacheable:
            return Reason("uncacheable", "it reads the clock")
        return Reason("forced", "--force was given") if self.forced else None

    def was_run(self, step: str) -> bool:
        return step in self.ran

    def later_dependencies(self, link: Recipe) -> Sequence[Dependency]:
        return ()

    def why_unusable(self, key: str) -> Reason | None:
        return Reason("untrusted", "it is not signed") if key in self.untrusted else None

    def prefetch(self, recipes: Callable[[], Iterable[Recipe]]) -> None:
        self.prefetched += [recipe.key for recipe in recipes()]

    # -- planning and building

    def facts(self, model: Model) -> Facts:
        toolchains = {target: self.trt if target.toolchain == "tensorrt" else self.rtx for target in model.targets}
        toolchains = {
            target: replace(found, version=target.version or found.version) for target, found in toolchains.items()
        }
        return Facts("linux-x86_64", self.versions, toolchains, {"LANG": "C.UTF-8"})

    def in_place(self, model: Model, record: Record) -> bool:
        return record.outputs["index"].sha256 in self.placed

    def plan(self, model: Model) -> ModelPlan:
        return plan_model(model, shapes_of(model), self.facts(model), self, self.in_place)

    def build(self, model: Model) -> list[str]:
        """Bring `model` up to date. Return the ids of the steps that ran, in order."""
        self.ran, self.ran_keys = [], set()
        plan = self.plan(model)
        while waiting := [step for step in plan.steps.values() if step.verdict != "hit"]:
            ready = [step for step in waiting if step.verdict == "run" and self._has_inputs(plan, step)]
            assert ready, [(step.id, step.verdict, step.reason.text) for step in waiting]
            step = ready[0]
            assert step.id not in self.ran, f"{step.id} runs twice"
            self.run(step, plan)
            plan = self.plan(model)
        for step in plan.steps.values():
            assert step.recipe is not None
            self.history[step.id] = step.recipe
        self._place(plan)
        return list(self.ran)

    def verdicts(self, model: Model) -> dict[str, str]:
        return {step.id: step.verdict for step in self.plan(model).steps.values()}

    def run(self, step: Step, plan: ModelPlan) -> Record:
        assert step.recipe is not None
        self.ran.append(step.id)
        self.ran_keys.add(step.key)
        if step.stage == "trace":
            return self._trace(plan)
        outputs, provenance = getattr(self, f"_{step.stage}")(step, plan)
        return self.keep(step.recipe, outputs, provenance)

    def put(self, data: bytes | str | Any) -> Output:
        """Store bytes, a text, or the JSON of any other value as a blob."""
        if not isinstance(data, bytes):
            data = (data if isinstance(data, str) else json.dumps(data)).encode()
        self.blobs[sha(data)] = data
        return Output(sha(data), len(data))

    def keep(self, recipe: Recipe, outputs: Mapping[str, Output], provenance: Mapping[str, object] = {}) -> Record:
        record = Record.from_bytes(Record(recipe, outputs, provenance).to_bytes())
        self.records[recipe.key] = record
        return record

    def evict(self, *outputs: Output) -> None:
        for output in outputs:
            del self.blobs[output.sha256]

    def add_weights_file(self, path: str, values: Mapping[str, str]) -> None:
        """Add a weights file. `values` are the values of the weights, by name."""
        self.tables[path] = {name: weight(value) for name, value in values.items()}
        for value in values.values():
            self.put(value_bytes(value))

    def _has_inputs(self, plan: ModelPlan, step: Step) -> bool:
        return all(plan.steps[name].verdict == "hit" for name in step.producers if name in plan.steps)

    def _place(self, plan: ModelPlan) -> None:
        assert plan.package is not None and plan.package.record is not None
        index = plan.package.record.outputs["index"]
        if index.sha256 not in self.placed:
            for entry in json.loads(self.blob(index.sha256))["files"].values():
                assert entry["size"] == len(self.blob(entry["sha256"]))
            self.placed.add(index.sha256)

    # -- the stages

    def _trace(self, plan: ModelPlan) -> Record:
        model, declared = plan.model, plan.user_code["trace"].declared
        table = self.weights_table(model)
        source = self.files[model.source.target]
        lines = [line.split() for line in source.splitlines() if not line.startswith("#")]
        dependencies = [
            Dependency("file", model.source.target),
            *(Dependency("file", words[1]) for words in lines if words[0] == "read"),
        ]
        dependencies.append(Dependency("distribution", "timm"))
        observations = [Observation(dependency, self.observe(dependency)) for dependency in dependencies]
        recipe = keys.user_code(
            declared, chain.extend(declared, observations, self.read_link, self.write_link, self.observe)
        )
        layers = [(words[1], words[2], words[0]) for words in lines if words[0] in ("layer", "torch")]
        values = {}
        if table is None:  # without a weights file, the trace stores the initial weights of the model
            values = {str(k): weight(f"initial {k}") for k in range(len(layers))}
            for k in values:
                self.put(value_bytes(f"initial {k}"))
        interface = {
            "weights": [
                {"name": f"{path}.weight", "dtype": "float32", "shape": [4], "persistent": True}
                for path, _, _ in layers
            ],
            "aliases": {},
            "inputs": [{"name": entry.name, "dtype": entry.dtype, "shape": [["sym", 0], 4]} for entry in model.inputs],
            "outputs": [{"name": "output_0", "dtype": "float32", "shape": [["sym", 0], 4]}],
            "output_tree": {"kind": "tensor", "index": 0},
        }
        record = self.keep(
            recipe,
            {
                "program": self.put({"source": source, "layers": layers}),
                "graph": self.put([(operator, kind) for _, operator, kind in layers]),
                "modules": self.put([[path, operator] for path, operator, _ in layers]),
                "interface": self.put(interface),
                "weights": self.put(weights_to_json(values)),
            },
        )
        # machines without torch find the record through this pointer record
        unversioned = trace_declared(model, plan.shapes, weight_types(table), "linux-x86_64", None)
        files = [entry for entry in observations if entry.dependency.kind != "distribution"]
        pointer = keys.user_code(
            unversioned, chain.extend(unversioned, files, self.read_link, self.write_link, self.observe)
        )
        self.keep(with_any_versions(pointer), {"record": self.put(record.to_bytes())})
        return record

    def write_link(
        self, recipe: Recipe, named: Sequence[Dependency], later_dependencies: Sequence[Dependency] = ()
    ) -> None:
        assert recipe.key not in self.records, "a link is written once"
        self.keep(recipe, {"next": self.put(chain.link_bytes(named))})

    def _lower(self, step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        layers = json.loads(self.blob(step.job.program))["layers"]
        precision = step.job.precisions.default
        return {
            "program": self.put({"lowered": layers, "precision": precision}),
            "graph": self.put([[operator, kind, precision] for _, operator, kind in layers]),
            "modules": self.put([[path, operator] for path, operator, _ in layers]),
        }, {}

    def _partition(self, step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        program = json.loads(self.blob(step.job.program))
        settings = step.job.settings
        rows = TensorType("float32", (["sym", 0], 4))
        partitions, outputs, source = [], {}, "input:0"
        for k, (path, operator, kind) in enumerate(program["lowered"]):
            name = path if settings.divides_by_module and kind == "layer" else f"p{k}"
            graph = sha(f"{operator} {program['precision']}")
            outputs[f"program:{graph}"] = self.put(f"program of {operator} {program['precision']}")
            partitions.append(
                Partition(
                    name=name,
                    kind="tensorrt" if kind == "layer" else "torch",
                    graph=graph,
                    weights=(k,),
                    inputs=((source, rows),),
                    outputs=(rows,),
                    calls=(k,),
                )
            )
            source = f"{name}:0"
        return {"partitions": self.put(Partitions(tuple(partitions), (source,)).to_bytes()), **outputs}, {}

    def _convert(self, step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        program = self.blob(step.job.program).decode()
        return {"onnx": self.put(f"onnx of {program}, opset {step.job.opset}"), "origins": self.put([["n0", 0]])}, {}

    def _engine(self, step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        self.blob(step.job.onnx)
        for bound_weight in step.job.weights:
            self.blob(bound_weight.sha256)
        return {"plan": self.put(f"plan {step.key}"), "layers": self.put("[]")}, {}

    def _package(self, step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        contents = plan.contents
        assert contents is not None
        modules = json.loads(self.blob(contents.modules.sha256))
        names = {}
        for target, cuts in contents.partitions_by_target.items():
            origins = {graph: json.loads(self.blob(sha256)) for graph, sha256 in contents.origins_of(target).items()}
            names[target] = name_table(cuts, modules, origins)
        plans = {f"{e.partition}@{e.target}": e.plan.sha256 for e in contents.engines if e.plan is not None}
        table = self.put(names)
        return {"index": self.put(index_to_json(package_index(contents, table))), "names": table}, {"plans": plans}


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()
