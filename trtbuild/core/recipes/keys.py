"""The recipes of all steps except package. The key of a step is made from its recipe.

Weights files, verifications and ``.pt2`` files have recipes here, too, although they are not steps of a plan.
`trtbuild.core.packages.package_recipe` has the recipe of package. `declared` has the parts of calibrate and trace that are
known before user code runs. `lookup_recipes` has the recipes with which a machine without PyTorch or a parser looks up
results.

Rules (for users: docs/keys.md)
1. A recipe has named parts in a fixed order. `core.recipes.recipe` makes the key from them.
2. A new field of a dataclass is in the key automatically, because `core.recipes.key_fields` takes every field except those
   that it lists. To leave a field out, add a line with the reason there. A field that was added later
   (`OMITTED_AT_DEFAULT`, or a setting that is not in `SETTINGS_IN_EVERY_KEY`) is left out if it has its default, so that
   older keys stay valid.
3. A step's recipe has the digests of the step's inputs. It does not say who made the inputs, or when. So if a step runs
   again and gives the same output, the later steps do not run.
4. The package's recipe names an engine by its key and not by its digest, because some toolchains do not build the
   same bytes again.
5. The key of a step that runs user code (calibrate, trace) has the directories for imports and the patterns of ``deps:``,
   because they decide which files are read. Both are in the key as the manifest declares them.
6. The version of a step (`STEP_VERSIONS`) is in its key, and the version of trtbuild is not. A step's version is raised
   when the step's output changes.
7. Versions of python, torch, onnx, onnx-ir and onnxscript are in the keys of calibrate, trace, lower, partition and
   convert. They are not in the keys of engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.plugins import Plugin
from trtbuild.core.model.precisions import Precisions
from trtbuild.core.model.spec import PartitionSettings, ShapeRange
from trtbuild.core.model.stand_in import StandInParser
from trtbuild.core.model.verification import QUANTIZER_TYPES, Point, RoundedType
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.key_fields import fields_of, settings_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Shared, Value
from trtbuild.core.values.value_ranges import ValueRange

#: The name of a stage → the version of its step (rule 6). ``weights``, ``verify`` and ``pt2`` are not stages of a plan, but
#: have recipes, too.
STEP_VERSIONS: Mapping[str, int] = {
    "calibrate": 9,
    "trace": 14,
    "lower": 16,
    "partition": 13,
    "convert": 9,
    "engine": 2,
    "package": 3,
    "weights": 1,
    "verify": 4,
    "pt2": 2,
}

#: ONNX models with this opset or an older one are converted from a newer opset (`trtbuild.stages.convert.opset`), because
#: torch's exporter writes only newer opsets.
LAST_DOWNGRADED_OPSET = 17

#: The version of the code that converts to an older opset. Only keys for these older opsets have it.
OPSET_DOWNGRADE_VERSION = 3

#: The version of the rules that decide which int64 values are safe with a toolchain that computes them in 32 bits
#: (`trtbuild.toolchain.tensorrt8.int64_bounds`). Only the keys of partitions for such a toolchain have it.
INT64_RULES_VERSION = 3

#: Before this major version of TensorRT, networks are not strongly typed.
STRONGLY_TYPED_SINCE = 9

#: The version of the rules that set the type of each layer in a network that is not strongly typed
#: (`trtbuild.toolchain.tensorrt8.precision`, `half_weights`). Only the keys of engines from such networks have it.
LAYER_TYPES_VERSION = 2


def _step(stage: str, *parts: tuple[str, Value]) -> Recipe:
    return Recipe(stage, STEP_VERSIONS[stage], tuple(parts))


def user_code(declared: Declared, observations: Sequence[Observation]) -> Recipe:
    """The recipe of a step that runs user code: its declared parts, and the observations of its dependencies."""
    parts = ((observation.dependency.part, observation.state) for observation in observations)
    return _step(declared.stage, *declared.parts, *parts)


def lower(
    graph: str, modules: str, precisions: Precisions, versions: Mapping[str, str], *, truncates_double: bool = False
) -> Recipe:
    """The recipe of a lower step. `graph` is the digest of the traced program's canonical text.

    `modules` is the digest of the program's module paths, which the canonical text does not have. The lower step copies
    them to its output, and compares the patterns of `precisions` with them. `truncates_double` is whether float64 is
    computed in float32."""
    return _step(
        "lower",
        ("graph", graph),
        ("modules", modules),
        ("precision", precisions.to_key()),
        ("versions", dict(versions)),
        *truncated_part(truncates_double),
    )


def truncated_part(truncates_double: bool) -> tuple[tuple[str, Value], ...]:
    """The part of a recipe that lists the types that are computed in a narrower type; empty without such types."""
    return (("truncated", ["float64"]),) if truncates_double else ()


def partition(
    graph: str,
    modules: str,
    settings: PartitionSettings,
    toolchain: str,
    toolchain_version: str,
    opset: int,
    versions: Mapping[str, str],
    stand_in: StandInParser | None = None,
    *,
    changes_opset: bool = False,
    narrows_int64: bool = False,
    plugins: Sequence[Plugin] = (),
) -> Recipe:
    """The recipe of a partition step. `graph` is the digest of the lowered program's canonical text.

    `modules` is the digest of the module paths. The recipe has it only if `granularity` uses these paths. `stand_in` is the
    parser that replaces the toolchain's parser, or None. `changes_opset` is whether this step converts the model to `opset`
    (for an ONNX source). `narrows_int64` is whether the toolchain computes int64 values in 32 bits. `plugins` are those of
    the model."""
    parser: list[Value] = [toolchain, toolchain_version]
    return _step(
        "partition",
        ("graph", graph),
        ("modules", modules if settings.divides_by_module else None),
        ("settings", settings_of(settings)),
        ("parser", parser if stand_in is None else [*parser, fields_of(stand_in)]),
        ("opset", opset),
        ("versions", dict(versions)),
        *(_opset_downgrade_part(opset) if changes_opset else ()),
        *((("narrowed", INT64_RULES_VERSION),) if narrows_int64 else ()),
        *_plugins_part(plugins),
    )


def convert(graph: str, opset: int, versions: Mapping[str, str], plugins: Sequence[Plugin] = ()) -> Recipe:
    """The recipe of a convert step. `graph` is the digest of one partition's canonical text.

    `plugins` are those of the operators that the partition calls. Weights, names and the toolchain are not parts, so equal
    partitions are converted once."""
    return _step(
        "convert",
        ("graph", graph),
        ("opset", opset),
        ("versions", dict(versions)),
        *_opset_downgrade_part(opset),
        *_plugins_part(plugins),
    )


def _plugins_part(plugins: Sequence[Plugin]) -> tuple[tuple[str, Value], ...]:
    """The part with the plugins of operators; empty without plugins, so that keys of models without plugins stay valid."""
    return (("plugins", {plugin.operator: fields_of(plugin) for plugin in plugins}),) if plugins else ()


def _opset_downgrade_part(opset: int) -> tuple[tuple[str, Value], ...]:
    return (("lowered", OPSET_DOWNGRADE_VERSION),) if opset <= LAST_DOWNGRADED_OPSET else ()


def engine(job: EngineJob, environment: Mapping[str, str]) -> Recipe:
    """The recipe of an engine step: the job and the environment variables of the worker."""
    return _step(
        "engine",
        ("onnx", job.onnx),
        ("weights", _weights(job.weights)),
        ("profiles", _profiles(job.profiles)),
        ("settings", settings_of(job.settings)),
        ("target", settings_of(job.target)),
        ("toolchain", [job.target.toolchain, job.toolchain_version]),
        ("environment", environment if isinstance(environment, Shared) else dict(environment)),
        *_layer_types_part(job),
        *((("plugin library", job.plugin_library),) if job.plugin_library is not None else ()),
    )


def _layer_types_part(job: EngineJob) -> tuple[tuple[str, Value], ...]:
    major = job.toolchain_version.partition(".")[0]
    weakly_typed = job.target.toolchain == "tensorrt" and major.isdigit() and int(major) < STRONGLY_TYPED_SINCE
    return (("typed", LAYER_TYPES_VERSION),) if weakly_typed else ()


@lru_cache(maxsize=256)  # the engines of one partition for all targets are planned one after the other
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


def weights_file(sha256: str) -> Recipe:
    """The recipe of the tensors of one safetensors file. `sha256` is the digest of the file."""
    return _step("weights", ("file", sha256), ("format", "safetensors"))


def verification(
    runner: str,
    program: str,
    partitions: str,
    compared_blobs: Mapping[str, str],
    weights: Sequence[Weight],
    points: Sequence[Point],
    tolerances: Mapping[RoundedType, float],
    versions: Mapping[str, str],
    machine: Mapping[str, str],
    ranges: Mapping[str, ValueRange] | None = None,
    *,
    quantized: bool = False,
    float_model: tuple[str, Sequence[Weight]] | None = None,
    has_rounded_weights: bool = False,
) -> Recipe:
    """The recipe of a verification, which compares the results of partitions with those of a reference.

    `runner` computes the results: "onnxruntime" or "engine". `program` is the digest of the traced program's canonical
    text. `partitions` is the digest of the partition step's document. `compared_blobs` maps graphs to the digests of ONNX
    models, or partitions to the digests of engine plans. `tolerances` has a tolerance for each type in which outputs are
    computed. `ranges` maps names of inputs to their declared ranges. Only the recipes of `quantized` models have the
    tolerances of quantizers, so that other recipes keep their keys.

    `float_model` is for a model with ``quantize:``. It has the digest of the canonical text, and the weights, of the trace
    without ``quantize:``; None without such a trace. `has_rounded_weights` is whether the trace rounded floats among the
    weights.
    """
    return _step(
        "verify",
        ("runner", runner),
        ("program", program),
        ("partitions", partitions),
        ("made of", dict(compared_blobs)),
        ("weights", [fields_of(weight) for weight in weights]),
        ("points", [fields_of(point) for point in points]),
        ("tolerance", {type_: value for type_, value in tolerances.items() if type_ not in QUANTIZER_TYPES}),
        ("versions", dict(versions)),
        ("machine", dict(machine)),
        *((("ranges", {name: list(ends) for name, ends in ranges.items()}),) if ranges else ()),
        *((("quantized", {type_: tolerances[type_] for type_ in QUANTIZER_TYPES}),) if quantized else ()),
        *((_float_part(*float_model),) if float_model is not None else ()),
        *((("rounded weights", True),) if has_rounded_weights else ()),
    )


def _float_part(graph: str, weights: Sequence[Weight]) -> tuple[str, Value]:
    return "float model", {"graph": graph, "weights": [fields_of(weight) for weight in weights]}


def exported_file(index: str, torch: str | None) -> Recipe:
    """The recipe of a package's ``.pt2`` files. The package has one file for each target.

    `index` is the digest of the package's index, which has the digests of all contents of the files. `torch` is the version
    of torch that writes the files, or None if it is not known."""
    return _step("pt2", ("index", index), ("torch", torch))
