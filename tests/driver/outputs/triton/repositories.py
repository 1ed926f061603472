"""Package indexes for tests, and checks of the Triton repositories that trtbuild makes from them.

The checks use Triton's schema of model configurations, and some of Triton's rules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf import text_format

from tests.store.memory_store import MemoryStore
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.package_index import PackageIndex, PackedDim, PackedProfile, PackedTarget, PackedTensor
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.values.expressions import freeze
from trtbuild.driver import outputs
from trtbuild.driver.outputs import triton

#: Sizes of dynamic axes, in the form of an index: B is the batch, and H is a height that is a multiple of 32.
B, H = ["sym", 0], ["mul", 32, ["sym", 1]]


def tensor(dtype: str, *shape: Any, name: str | None = None) -> dict[str, Any]:
    described = {"dtype": dtype, "shape": list(shape)}
    return {"name": name, **described} if name is not None else described


def part(name: str, inputs: Sequence[Any], outs: Sequence[Any], kind: str = "tensorrt") -> dict[str, Any]:
    return {"name": name, "kind": kind, "inputs": [list(entry) for entry in inputs], "outputs": list(outs)}


def a_package_index(**changes: Any) -> dict[str, Any]:
    """Return the index of a detector with two engines: image → features, features → boxes and scores."""
    image = tensor("float32", B, 3, H, 64)
    features = tensor("float16", B, 8, H)
    boxes, scores = tensor("float32", B, 10, 4), tensor("float32", B, 10)
    parts = [
        part("p0", [("input:0", image)], [features]),
        part("p1", [("p0:0", features)], [boxes, scores]),
    ]
    base = {
        "schema": "trtbuild.package/1",
        "model": "det",
        "inputs": [{**image, "name": "image", "keyword": False}],
        "outputs": [{**boxes, "name": "boxes"}, {**scores, "name": "scores"}],
        "dims": [
            {"name": "batch", "min": 1, "max": 8, "multiple_of": 1},
            {"name": "height", "min": 32, "max": 640, "multiple_of": 32},
        ],
        "profiles": [profile("photo", image=([1, 3, 32, 64], [4, 3, 320, 64], [8, 3, 640, 64]))],
        "targets": {"hopper": a_target(90, parts, ["p1:0", "p1:1"])},
    }
    return {**base, **changes}


def profile(name: str, **shapes: tuple[list[int], list[int], list[int]]) -> dict[str, Any]:
    """A profile. `shapes` maps each input to its min, opt and max."""
    ranges = {entry: dict(zip(("min", "opt", "max"), sizes, strict=True)) for entry, sizes in shapes.items()}
    return {"name": name, "shapes": ranges}


def a_target(sm: int, parts: Sequence[Mapping[str, Any]], outs: Sequence[str], **changes: Any) -> dict[str, Any]:
    return {
        "sm": sm,
        "toolchain": "tensorrt",
        "version": "10.3.0",
        "platform": "linux-x86_64",
        "compatibility": "exact",
        "sms": [sm],
        "partitions": {"partitions": list(parts), "outputs": list(outs)},
        "engines": {},
        **changes,
    }


def one_engine(
    inputs: Sequence[Any], outs: Sequence[Any], profiles: Sequence[Any] | None = None, **target: Any
) -> dict[str, Any]:
    """Return the index of a model with one engine. `inputs` and `outs` are tensors with names."""
    tensors = [{"dtype": entry["dtype"], "shape": entry["shape"]} for entry in (*inputs, *outs)]
    part_inputs, part_outputs = tensors[: len(inputs)], tensors[len(inputs) :]
    engine = part("model", [(f"input:{number}", entry) for number, entry in enumerate(part_inputs)], part_outputs)
    index = a_package_index(
        inputs=[{**entry, "keyword": False} for entry in inputs],
        outputs=list(outs),
        targets={"hopper": a_target(90, [engine], [f"model:{number}" for number in range(len(outs))], **target)},
    )
    shapes = {entry["name"]: [size if isinstance(size, int) else 32 for size in entry["shape"]] for entry in inputs}
    index["profiles"] = list(
        profiles or [profile("p", **{name: (shape, shape, shape) for name, shape in shapes.items()})]
    )
    return index


def put_package(index: dict[str, Any], store: MemoryStore) -> Record:
    """Add the plans of all TensorRT partitions to `index` and to `store`. Return the record of the package."""
    index["files"] = {"names.json": store.put_bytes(b"{}").to_json()}
    for name, target in index["targets"].items():
        for entry in target["partitions"]["partitions"]:
            if entry["kind"] == "tensorrt":
                path = f"engines/{name}/{entry['name']}.plan"
                index["files"][path] = store.put_bytes(path.encode()).to_json()
                target["engines"][entry["name"]] = path
    # no test parses this blob, because `read_unchecked` returns the index
    return Record(Recipe("package", 2, ()), {"index": store.put_bytes(repr(index).encode())})


def read_unchecked(index: Mapping[str, Any]) -> PackageIndex:
    """Return the index as `read_index` does, but without its checks, because some tests need invalid indexes."""
    names = [entry["name"] for entry in index["inputs"]]
    return PackageIndex(
        model=index["model"],
        inputs=tuple(_packed(entry) for entry in index["inputs"]),
        outputs=tuple(_packed(entry) for entry in index["outputs"]),
        output_tree=None,
        dims=tuple(PackedDim(**entry) for entry in index["dims"]),
        profiles=tuple(
            PackedProfile(entry["name"], tuple(ShapeRange(**entry["shapes"][name]) for name in names))
            for entry in index["profiles"]
        ),
        precision="float32",
        targets={name: _target(name, entry) for name, entry in index["targets"].items()},
        reference=False,
        weights={},
        files={path: Output(**entry) for path, entry in index.get("files", {}).items()},
    )


def _packed(entry: Mapping[str, Any]) -> PackedTensor:
    return PackedTensor(entry["name"], entry["dtype"], tuple(freeze(size) for size in entry["shape"]))


def _target(name: str, entry: Mapping[str, Any]) -> PackedTarget:
    partitions = entry["partitions"]
    fields = ("sm", "toolchain", "version", "compatibility", "platform", "engines")
    return PackedTarget(
        name=name,
        **{field: entry[field] for field in fields},
        sms=tuple(entry["sms"]),
        version_compatible=False,
        partitions=Partitions(
            tuple(_partition(part) for part in partitions["partitions"]), tuple(partitions["outputs"])
        ),
        programs={},
        layers={},
    )


def _partition(entry: Mapping[str, Any]) -> Partition:
    return Partition(
        name=entry["name"],
        kind=entry["kind"],
        graph="",
        weights=(),
        inputs=tuple((source, _type(type_)) for source, type_ in entry["inputs"]),
        outputs=tuple(_type(type_) for type_ in entry["outputs"]),
        calls=(),
    )


def _type(entry: Mapping[str, Any]) -> TensorType:
    return TensorType(entry["dtype"], tuple(entry["shape"]))


def repository(index: dict[str, Any]) -> dict[str, outputs.OutputFile]:
    """Path in the repository → file, for all files of the model."""
    record = put_package(index, MemoryStore())
    files = triton.model_files("r", read_unchecked(index), record)
    return {file.path.removeprefix("r/"): file for file in files}


def configurations(index: dict[str, Any]) -> dict[str, Any]:
    """Model name → configuration, read with Triton's schema and checked with Triton's rules."""
    configs = {}
    for path, file in repository(index).items():
        if path.endswith("/config.pbtxt"):
            assert file.data is not None
            config = text_format.Parse(file.data.decode(), schema().ModelConfig())
            assert path == f"{config.name}/config.pbtxt"
            configs[config.name] = config
    check(configs)
    return configs


@cache
def schema() -> Any:
    """Return the protobuf schema of Triton's client. (Importing the client itself would need gRPC.)"""
    files = importlib.metadata.files("tritonclient") or []
    (path,) = [file.locate() for file in files if str(file).endswith("tritonclient/grpc/model_config_pb2.py")]
    spec = importlib.util.spec_from_file_location("triton_model_config", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(configs: Mapping[str, Any]) -> None:
    """Check rules of triton-inference-server/core (model_config_utils.cc, ensemble_utils.cc) that the schema lacks."""
    for config in configs.values():
        names = [entry.name for entry in (*config.input, *config.output)]
        assert len(names) == len(set(names))
        for entry in (*config.input, *config.output):
            assert entry.dims and all(size == -1 or size > 0 for size in entry.dims)
            if entry.HasField("reshape"):
                assert not config.max_batch_size and list(entry.dims) == [1] and not entry.reshape.shape
        if config.platform == "ensemble":
            _check_ensemble(config, configs)


def _check_ensemble(ensemble: Any, configs: Mapping[str, Any]) -> None:
    """Check that each tensor has one type, one shape (with the batch) and exactly one source."""
    type_and_dims_by_tensor: dict[str, tuple[int, list[int]]] = {}
    batch = [-1] if ensemble.max_batch_size else []

    def check_type(tensor_name: str, entry: Any, batch_dims: list[int]) -> None:
        type_and_dims = entry.data_type, batch_dims + list(entry.dims)
        assert type_and_dims_by_tensor.setdefault(tensor_name, type_and_dims) == type_and_dims, tensor_name

    for entry in (*ensemble.input, *ensemble.output):
        assert not entry.HasField("reshape")
        check_type(entry.name, entry, batch)
    available = {entry.name for entry in ensemble.input}
    used = set()
    for step in ensemble.ensemble_scheduling.step:
        config = configs[step.model_name]
        assert config.max_batch_size == 0 and step.model_version == -1
        assert set(step.input_map) == {entry.name for entry in config.input} and step.input_map
        assert set(step.output_map) == {entry.name for entry in config.output}
        for entry in config.input:
            assert step.input_map[entry.name] in available, "each input of a step must exist before the step"
            check_type(step.input_map[entry.name], entry, [])
        used.update(step.input_map.values())
        for entry in config.output:
            assert step.output_map[entry.name] not in available
            available.add(step.output_map[entry.name])
            check_type(step.output_map[entry.name], entry, [])
    assert {entry.name for entry in ensemble.input} <= used
    assert {entry.name for entry in ensemble.output} <= available
