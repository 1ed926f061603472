"""The recipe of every step. This is the heart: a wrong hit is the worst bug this product can have.

Rules (docs/keys.md for users)
1. A recipe holds named parts in a fixed order; `core.recipes.recipe` makes the key of them.
2. In by default: settings enter through `fields_of`, which takes every field of a dataclass but those in `EXCLUDED`.
   A new field is in the key without anybody remembering it; leaving one out takes a line and a reason here.
3. A step's recipe holds the digests of what it consumes, never who made it or when: early cut-off.
4. Below an engine its key stands for it, because engine bytes are not reproducible with every toolchain.
5. What user code sees is in the key of its trace as it was written down: a directory to import from, or a pattern of
   ``deps:``, decides *what* is looked at, so the things that were looked at cannot stand for it.
6. trtbuild's own steps enter by `STEP_VERSIONS`, bumped when that step's output changes, not by the package's version.
7. Versions of torch, onnx and onnxscript are in trace, lower, partition and convert, and in no engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.shapes import ShapePlan, symbol_values
from trtbuild.core.model.spec import BuilderSettings, Model, PartitionSettings, Precision, ShapeRange, Target
from trtbuild.core.model.stand_in import StandIn
from trtbuild.core.model.verification import Point
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Shared, Value, encode
from trtbuild.core.values.value_ranges import ValueRange

STEP_VERSIONS: Mapping[str, int] = {
    "trace": 2,
    "lower": 3,
    "partition": 2,
    "convert": 2,
    "engine": 2,
    "package": 3,
    "weights": 1,
    "verify": 2,
    "pt2": 1,
}

#: (type, field) → why `fields_of` leaves it out. Every other field of every type of core.spec, core.shapes and
#: core.engine_job is in a key as it is. Labels are in the package's key, and only there: they are what a package says.
EXCLUDED: Mapping[tuple[str, str], str] = {
    ("Model", "name"): "a label: it names the steps, not their results",
    ("Model", "origin"): "where it was written down",
    ("Model", "places"): "where its fields were written down",
    ("Model", "outputs"): "where results are put; the results are the same",
    ("Model", "targets"): "in another form: each engine has its own target in its key",
    ("Model", "dims"): "in another form: what follows from them, symbols and shapes (core.shapes), is in the key",
    ("Model", "profiles"): "in another form: their shapes, in order, are in the keys of traces and engines",
    ("Model", "weights"): "in another form: a path; what the file holds is in the key",
    ("Profile", "name"): "a label; its place in the order and its shapes are in the key",
    ("Target", "name"): "a label; what it stands for is in the key",
    ("Target", "version"): "in another form: a pin; the toolchain's resolved version is in the key",
    ("Symbol", "name"): "a label; symbols are numbered",
    ("EngineJob", "inputs"): "in another form: it follows from the conversion, and what is compiled is held to it",
    ("EngineJob", "outputs"): "in another form: it follows from the conversion, and what is compiled is held to it",
}

#: (type, field) → why it is a part only where it is not None. It came after keys of its type were in use; without it a key
#: means what it meant.
SAID_ONLY: Mapping[tuple[str, str], str] = {
    ("BuilderSettings", "tactic_sources"): "None is the library's own choice, as it was before the setting was there",
    ("Input", "range"): "None draws the values as they were drawn before ranges were there",
}


#: Opsets up to this one are had by lowering a newer one (`trtbuild.stages.convert.opset`); `LOWERED` is one more when that
#: leaves something else, so that conversions to newer opsets keep their keys.
LOWERED_OPSET, LOWERED = 17, 3

#: Which int64 values are cut for a toolchain that computes them in 32 bits (`trtbuild.toolchain.tensorrt8.counting`): one
#: more when other values are. Only partitions for such a toolchain say it.
NARROWED = 2

#: How the layers of a network that is not strongly typed, TensorRT's before release 9, get the types of the graph
#: (`trtbuild.toolchain.tensorrt8.precision`, `half_weights`): one more when they get others. Only engines of such a
#: release say it.
STRONGLY_TYPED_SINCE, TYPED = 9, 2


def fields_of(value: Any) -> dict[str, Value]:
    """Every field of a dataclass that is not in `EXCLUDED`, nested dataclasses too, as encodable values. Those in
    `SAID_ONLY` are absent where they are None."""
    owner = type(value).__name__
    return {
        entry.name: _plain(getattr(value, entry.name))
        for entry in dataclasses.fields(value)
        if (owner, entry.name) not in EXCLUDED
        and not ((owner, entry.name) in SAID_ONLY and getattr(value, entry.name) is None)
    }


def settings_of(value: BuilderSettings | PartitionSettings | Target) -> Shared:
    """`fields_of`, once for all equal settings."""
    return _settings_of(value, tuple(map(type, vars(value).values())))  # 1 and True are equal, and two settings


@lru_cache(maxsize=1024)
def _settings_of(value: Any, _: tuple[type, ...]) -> Shared:
    return Shared(fields_of(value))


def _plain(value: Any) -> Value:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}  # not str(key): 1 and "1" are two keys
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value  # type: ignore[no-any-return]  # the encoder refuses what it does not know


def trace_declared(
    model: Model,
    shapes: ShapePlan,
    weights: Sequence[tuple[str, str, Sequence[int]]] | None,
    platform: str,
    versions: Mapping[str, str] | None,
) -> tuple[tuple[str, Value], ...]:
    """The declared parts of a trace: all that is known before user code runs.

    `weights` are names, dtypes and shapes of the weights file. Without `versions` these are the parts by which a
    machine that has no torch looks for a trace that somebody else made.
    """
    inputs: list[Value] = []
    for entry, axes in zip(model.inputs, shapes.shapes, strict=True):
        described = fields_of(entry)  # its name too: a keyword's is passed, and outputs must not be called like inputs
        described["shape"] = [axis if isinstance(axis, int) else {"symbol": axis.symbol} for axis in axes]
        inputs.append(described)
    parts: list[tuple[str, Value]] = [
        ("source", fields_of(model.source)),
        ("inputs", inputs),
        ("dims", [fields_of(symbol) for symbol in shapes.symbols]),
        ("proven at", [list(point) for point in proof_points(model, shapes)]),
        ("weights", None if weights is None else [[name, dtype, list(shape)] for name, dtype, shape in weights]),
        ("platform", platform),
    ]
    if versions is not None:
        parts.append(("versions", dict(versions)))
    return tuple(parts)


def proof_points(model: Model, shapes: ShapePlan) -> tuple[tuple[int, ...], ...]:
    """The symbol sizes at which a trace is compared with eager: min and max of every profile, once each."""
    points = [symbol_values(shapes, profile, which) for profile in model.profiles for which in ("min", "max")]
    return tuple(dict.fromkeys(points))


def _step(stage: str, *parts: tuple[str, Value]) -> Recipe:
    return Recipe(stage, STEP_VERSIONS[stage], tuple(parts))


def trace(declared: Sequence[tuple[str, Value]], observations: Sequence[Observation]) -> Recipe:
    """A trace: what was declared, and everything that it was seen to depend on."""
    return _step("trace", *declared, *((seen.dependency.part, seen.seen) for seen in observations))


def lower(graph: str, modules: str, precision: str, versions: Mapping[str, str]) -> Recipe:
    """`graph` is the digest of the traced program's canonical text, `modules` that of its module paths: they are not in
    the text, and lowering hands them on."""
    return _step(
        "lower", ("graph", graph), ("modules", modules), ("precision", precision), ("versions", dict(versions))
    )


def partition(
    graph: str,
    modules: str,
    settings: PartitionSettings,
    toolchain: str,
    toolchain_version: str,
    opset: int,
    versions: Mapping[str, str],
    stand_in: StandIn | None = None,
    *,
    lowers: bool = False,
    narrows: bool = False,
) -> Recipe:
    """`modules` is the digest of the module paths: a part only where granularity asks for them. The parser is the
    toolchain's own, or another that is asked in its place, with all that is known of the difference. `lowers` says that the
    step leaves ONNX in the opset itself: of a model that comes as ONNX; `narrows`, that the toolchain computes
    int64 values in 32 bits."""
    parser: list[Value] = [toolchain, toolchain_version]
    return _step(
        "partition",
        ("graph", graph),
        ("modules", modules if settings.by_module else None),
        ("settings", settings_of(settings)),
        ("parser", parser if stand_in is None else [*parser, fields_of(stand_in)]),
        ("opset", opset),
        ("versions", dict(versions)),
        *(_lowered(opset) if lowers else ()),
        *((("narrowed", NARROWED),) if narrows else ()),
    )


def convert(graph: str, opset: int, versions: Mapping[str, str]) -> Recipe:
    """`graph` is the digest of one partition's canonical text. No weights, no names, no toolchain."""
    return _step("convert", ("graph", graph), ("opset", opset), ("versions", dict(versions)), *_lowered(opset))


def _lowered(opset: int) -> tuple[tuple[str, Value], ...]:
    return (("lowered", LOWERED),) if opset <= LOWERED_OPSET else ()


def engine(job: EngineJob, environment: Mapping[str, str]) -> Recipe:
    """Everything that an engine worker is told, and the environment that it is given."""
    return _step(
        "engine",
        ("onnx", job.onnx),
        ("weights", _weights(job.weights)),
        ("profiles", _profiles(job.profiles)),
        ("settings", settings_of(job.settings)),
        ("target", settings_of(job.target)),
        ("toolchain", [job.target.toolchain, job.toolchain_version]),
        ("environment", environment if isinstance(environment, Shared) else dict(environment)),
        *_typed(job),
    )


def _typed(job: EngineJob) -> tuple[tuple[str, Value], ...]:
    major = job.toolchain_version.partition(".")[0]
    weak = job.target.toolchain == "tensorrt" and major.isdigit() and int(major) < STRONGLY_TYPED_SINCE
    return (("typed", TYPED),) if weak else ()


@lru_cache(maxsize=256)  # the engines of a partition for all targets come close together
def _weights(weights: tuple[Weight, ...]) -> Shared:
    return Shared({f"w{number}": fields_of(weight) for number, weight in enumerate(weights)})


@lru_cache(maxsize=256)
def _profiles(profiles: tuple[tuple[ShapeRange, ...], ...]) -> Shared:
    return Shared(
        {
            str(number): {f"i{k}": fields_of(shape) for k, shape in enumerate(profile)}
            for number, profile in enumerate(profiles)
        }
    )


def weights_file(sha256: str, form: str) -> Recipe:
    """The tensors of one weights file, by the digest of its bytes."""
    return _step("weights", ("file", sha256), ("format", form))


def verification(
    runner: str,
    program: str,
    partitions: str,
    made_of: Mapping[str, str],
    weights: Sequence[Weight],
    points: Sequence[Point],
    tolerances: Mapping[Precision, float],
    versions: Mapping[str, str],
    machine: Mapping[str, str],
    ranges: Mapping[str, ValueRange] | None = None,
) -> Recipe:
    """That partitions are what PyTorch computes. `program` is the digest of the traced program's canonical text,
    `partitions` that of the partition step's document; `made_of` are the ONNX models by graph, or the plans by partition;
    `tolerances` are by what an output was computed in, which follows from the programs; `ranges`
    are the values that inputs take, by name, where they are said.
    """
    return _step(
        "verify",
        ("runner", runner),
        ("program", program),
        ("partitions", partitions),
        ("made of", dict(made_of)),
        ("weights", [fields_of(weight) for weight in weights]),
        ("points", [fields_of(point) for point in points]),
        ("tolerance", {str(precision): value for precision, value in tolerances.items()}),
        ("versions", dict(versions)),
        ("machine", dict(machine)),
        *((("ranges", {name: list(ends) for name, ends in ranges.items()}),) if ranges else ()),
    )


def exported_file(index: str, torch: str | None) -> Recipe:
    """The ``.pt2`` files of a package, one for each target. `index` is the digest of its index, which names all that is in
    them; `torch` is the version that writes them."""
    return _step("pt2", ("index", index), ("torch", torch))


def any_exported_file(recipe: Recipe) -> Recipe:
    """Where a machine without that torch looks for ``.pt2`` files: the same package, whichever version wrote them."""
    return Recipe("pt2-any", recipe.version, tuple(part for part in recipe.parts if part[0] != "torch"))


def any_trace(recipe: Recipe) -> Recipe:
    """Where a machine without torch looks for a trace: the same parts but the versions that it was made with."""
    return Recipe("trace-any", recipe.version, tuple(part for part in recipe.parts if part[0] != "versions"))


def any_partition(recipe: Recipe) -> Recipe:
    """Where a machine that cannot ask a parser looks for a partition: the same parts, whichever parser was asked for the
    toolchain."""
    parts = tuple((name, _toolchain_of(value) if name == "parser" else value) for name, value in recipe.parts)
    return Recipe("partition-any", recipe.version, parts)


#: Stages of records that only lead to another. Whoever sends both sends these behind what they lead to.
POINTERS = frozenset(("trace-any", "partition-any"))


def stand_in_of(partition: Recipe) -> Mapping[str, Value] | None:
    """The fields of the stand-in that a partition's recipe says is asked; None for the toolchain's own parser."""
    parser = dict(partition.parts).get("parser")
    found = parser[2] if isinstance(parser, list | tuple) and len(parser) > 2 else None
    return found if isinstance(found, Mapping) else None


def _toolchain_of(parser: Value) -> Value:
    return parser[:2] if isinstance(parser, list | tuple) else parser


def may_stand_for(made: Recipe, anyone: Recipe) -> bool:
    """Whether the trace `made` is one that `anyone` (a trace without versions) leads to: it was declared alike, and
    nothing that both looked at differs. What only one of them looked at is a superset that the chain asked for."""
    parts = dict(made.parts)
    return (made.stage, made.version) == (anyone.stage, anyone.version) and all(
        encode(parts[name]) == encode(value) if name in parts else ":" in name for name, value in anyone.parts
    )
