"""One recipe of each stage, computed by the real functions from fixed values.

As a script, this module prints the keys of the recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtbuild.core.engines.binding import Interface, WeightSlot
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.plugins import Plugin, Plugins, plugins_of
from trtbuild.core.model.quantization import Calibration, Quantization
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import (
    Input,
    Model,
    NamedDim,
    Origin,
    PartitionSettings,
    Profile,
    ShapeRange,
    Source,
    Target,
)
from trtbuild.core.model.verification import Point, tolerances
from trtbuild.core.packages.contents import PackageContents, PackageEngine, ToolchainPartitions
from trtbuild.core.packages.package_recipe import package_recipe
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.core.planning.expand import engine_job
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.declared import calibrate_declared, trace_declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output

A, B, C, D = "a" * 64, "b" * 64, "c" * 64, "d" * 64
VERSIONS = {"python": "3.11", "torch": "2.13.0", "onnx": "1.20.0", "onnxscript": "0.6.0"}
ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
PLATFORM = "linux-x86_64"


def _range(low: int, mid: int, high: int, *rest: int) -> ShapeRange:
    return ShapeRange((low, *rest), (mid, *rest), (high, *rest))


MODEL = Model(
    name="vit",
    source=Source(
        "python",
        "models.vit:build",
        kwargs={"depth": 12, "scale": 0.5, "names": ["a", None, True]},
        deps=("data/*.txt",),
        env=("VIT_SIZE",),
        roots=("models", "."),
    ),
    inputs=(Input("image"), Input("mask", "bool", keyword=True)),
    profiles=(
        Profile("single", (("image", _range(1, 1, 1, 3)), ("mask", _range(1, 1, 1)))),
        Profile("batch", (("image", _range(2, 4, 8, 3)), ("mask", _range(2, 4, 8)))),
    ),
    targets=(
        Target("ada", 89),
        Target("hopper", 90, "tensorrt", "8.6.0", "same_compute_capability", "windows-x86_64"),
    ),
    origin=Origin("trtbuild.yaml", 3),
    dims=(NamedDim("batch", (("image", 0), ("mask", 0))),),
    weights="weights/vit.safetensors",
    precision="float16",
    partition=PartitionSettings(("encoder.*",), 3, ("aten.cumsum",), require_full_compilation=False),
    builder=BuilderSettings(workspace=1 << 30, tf32=False),
    outputs=(("package", "dist/vit"),),
    places={"source": Origin("trtbuild.yaml", 4)},
)
WEIGHTS = (Weight("float32", (2, 3), B), Weight("int64", (), C))
TOOLCHAIN_VERSION = "1.4.0.76"
OPSET = 22

_BATCH = TensorType("float16", (["mul", 2, ["sym", 0]], 3))
PARTITIONS = Partitions(
    (
        Partition("encoder.0", "tensorrt", A, (1, 0), (("input:0", _BATCH),), (_BATCH,), (0, 1, -1)),
        Partition(
            "p1", "torch", B, (0,), (("encoder.0:0", _BATCH), ("input:1", _BATCH)), (_BATCH,), (2,), {"op": "so"}
        ),
    ),
    ("p1:0",),
)
INTERFACE = Interface(
    slots=(WeightSlot("w", "float32", (2, 3), persistent=True), WeightSlot("n", "int64", (), persistent=False)),
    aliases={},
    inputs=(
        {"name": "image", "keyword": False, "dtype": "float32", "shape": [["sym", 0], 3]},
        {"name": "mask", "keyword": True, "dtype": "bool", "shape": [["sym", 0]]},
    ),
    outputs=({"name": "output_0", "dtype": "float32", "shape": [["mul", 2, ["sym", 0]], 3]},),
    output_tree={"kind": "tensor", "index": 0},
)


def shapes_of(model: Model) -> ShapePlan:
    shapes, problems = derive(model.inputs, model.dims, model.profiles)
    assert shapes is not None, problems
    return shapes


#: A quantization, which `MODEL` does not have.
QUANTIZATION = Quantization("int8", "entropy", Calibration("data:batches", kwargs={"n": 8}, samples=4), ("head",))

#: Plugins, which `MODEL` does not have.
PLUGINS = Plugins((Plugin("mylib::roi", "RoiPlugin", arguments={"height": "h"}, attributes={"mode": 1}),), "libroi.so")

#: The points of a verification, as constants. A real verification gets its points from `points_of_model`.
POINTS = (Point(0, "min", (1,), seed=7), Point(0, "random 2", (3,), seed=8, zeros=True))


@dataclass(frozen=True)
class Build:
    """The inputs from which keys are computed. The digests of the results of steps are constants, such as `A`."""

    model: Model = MODEL
    weights: tuple[Weight, ...] = WEIGHTS
    #: If None, the shapes follow from the model.
    shapes: ShapePlan | None = None
    #: If None, the job follows from the model.
    job: EngineJob | None = None
    #: The digest of the library of plugins.
    library: str = D

    @property
    def partitions(self) -> Partitions:
        """`PARTITIONS`. If the model has plugins, the first partition calls all of them."""
        if self.model.plugins is None:
            return PARTITIONS
        first, *others = PARTITIONS.partitions
        called = tuple(plugin.operator for plugin in self.model.plugins.operators)
        return replace(PARTITIONS, partitions=(replace(first, plugins=called), *others))

    def plan(self) -> ShapePlan:
        return self.shapes if self.shapes is not None else shapes_of(self.model)

    def trace(self, versions: Mapping[str, str] | None = VERSIONS) -> Recipe:
        weights = [("w", "float32", (2, 3))] if self.model.weights else None
        observations = [
            Observation(Dependency("file", "models/vit.py"), A),
            Observation(Dependency("file", "models/old.py"), "absent"),
            Observation(Dependency("distribution", "timm"), "1.0.20"),
        ]
        return keys.user_code(trace_declared(self.model, self.plan(), weights, PLATFORM, versions), observations)

    def calibrate(self) -> Recipe:
        observations = [Observation(Dependency("file", "data.py"), A)]
        return keys.user_code(calibrate_declared(self.model, PLATFORM, VERSIONS), observations)

    def engine_job(self) -> EngineJob:
        model, target = self.model, self.model.targets[0]
        part = PARTITIONS.partitions[0]
        job = self.job or engine_job(
            model, self.plan(), part, A, self.weights, model.builder, target, TOOLCHAIN_VERSION
        )
        return job if model.plugins is None else replace(job, plugin_library=self.library)

    def contents(self) -> PackageContents:
        targets = [target.name for target in self.model.targets]
        cut = ToolchainPartitions(self.partitions, {B: Output(D, 100)})
        return PackageContents(
            model=self.model,
            shapes=self.plan(),
            interface=INTERFACE,
            weights=self.weights,
            modules=Output(C, 10),
            partitions_by_target=dict.fromkeys(targets, cut),
            engines=[PackageEngine("encoder.0", target, A, Output(B, 1000), Output(C, 20)) for target in targets],
            toolchains=dict.fromkeys(targets, TOOLCHAIN_VERSION),
            origins={A: C},
            plugin_library=None if self.model.plugins is None else Output(self.library, 10),
            sms={target.name: (target.sm,) for target in self.model.targets},
        )

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipe of each stage of the model, by the name of the stage."""
        model, toolchain = self.model, self.model.targets[0].toolchain
        plugins = () if model.plugins is None else model.plugins.operators
        called = plugins_of(model.plugins, self.partitions.partitions[0].plugins)
        return {
            **({"calibrate": self.calibrate()} if model.quantization is not None else {}),
            "trace": self.trace(),
            "lower": keys.lower(A, B, model.precisions, VERSIONS, truncates_double=model.partition.truncate_double),
            "partition": keys.partition(
                A, B, model.partition, toolchain, TOOLCHAIN_VERSION, OPSET, VERSIONS, plugins=plugins
            ),
            "convert": keys.convert(A, OPSET, VERSIONS, called),
            "engine": keys.engine(self.engine_job(), ENVIRONMENT),
            "package": package_recipe(self.contents()),
            "weights": keys.weights_file(A),
            "verify": keys.verification(
                "onnxruntime",
                program=A,
                partitions=B,
                compared_blobs={C: D},
                weights=WEIGHTS,
                points=POINTS,
                tolerances=tolerances("onnxruntime"),
                versions=VERSIONS,
                machine={"platform": PLATFORM},
            ),
            "pt2": keys.exported_file(A, "2.13.0"),
        }


def recipe_of_each_stage() -> dict[str, Recipe]:
    """Return a recipe for each stage, also for `calibrate`, which `MODEL` does not have."""
    return {**Build().recipes(), "calibrate": Build(replace(MODEL, quantization=QUANTIZATION)).calibrate()}


if __name__ == "__main__":
    for stage, recipe in recipe_of_each_stage().items():
        print(stage, recipe.key)
