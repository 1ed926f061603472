"""Reading the index of a package into typed values, and the checks of these values."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.core.recipe_values import MODEL, Build
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.contents import ToolchainPartitions
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_indexing import package_index
from trtbuild.core.packages.package_reading import check_path, read_index
from trtbuild.core.packages.package_writing import index_to_bytes
from trtbuild.core.recipes.record import Output
from trtbuild.errors import PackageDamaged, PackageTooNew

A, B, D = "a" * 64, "b" * 64, "d" * 64


def document() -> Any:
    """Return the JSON of the index of a package with a reference program."""
    contents = Build(replace(MODEL, reference=True)).contents()
    partitions = next(iter(contents.partitions_by_target.values())).partitions
    with_programs = ToolchainPartitions(partitions, {A: Output(B, 50), B: Output(D, 100)})
    contents = replace(contents, partitions_by_target=dict.fromkeys(contents.partitions_by_target, with_programs))
    return json.loads(index_to_bytes(package_index(contents, Output(A, 30))))


def read(changed: Any) -> PackageIndex:
    return read_index(json.dumps(changed).encode())


def test_the_range_of_an_inputs_values_is_optional() -> None:
    index = document()
    assert [entry.range for entry in read(index).inputs] == [None, None]
    index["inputs"][0]["range"] = [0, 255]
    assert read(index).inputs[0].range == (0.0, 255.0)


@pytest.mark.parametrize("ends", [[0], [0, 1, 2], ["0", 1], [1, 0], [0, 1e39], [True, 1], [0, float("nan")], 5, None])
def test_rejects_an_invalid_range(ends: Any) -> None:
    index = document()
    index["inputs"][0]["range"] = ends
    with pytest.raises(PackageDamaged):
        read(index)


def test_the_quantized_types_are_optional() -> None:
    index = document()
    assert "quantized" not in index and read(index).quantized == ()
    index["quantized"] = ["int8", "a type of a later version"]
    assert read(index).quantized == ("int8", "a type of a later version")
    assert json.loads(index_to_bytes(read(index)))["quantized"] == index["quantized"]


@pytest.mark.parametrize("types", ["int8", {"int8": 1}, [8], [""], None])
def test_rejects_invalid_quantized_types(types: Any) -> None:
    with pytest.raises(PackageDamaged):
        read({**document(), "quantized": types})


def test_operators_are_optional() -> None:
    index = document()
    assert "operators" not in index and read(index).operators == ()
    index["operators"] = [
        {"name": "mylib.twist.default", "schema": "mylib::twist(Tensor x) -> Tensor", "module": "a.b"}
    ]
    assert read(index).operators[0].module == "a.b"
    assert json.loads(index_to_bytes(read(index)))["operators"] == index["operators"]


@pytest.mark.parametrize(
    "operators", ["x", {"name": "a.b.c"}, [5], [{"name": "a.b.c"}], [{"name": "a", "schema": "a"}]]
)
def test_rejects_invalid_operators(operators: Any) -> None:
    with pytest.raises(PackageDamaged):
        read({**document(), "operators": operators})


def test_reference_programs_are_computed_by_pytorch_or_onnxruntime() -> None:
    index = document()
    assert read(index).reference_library == "PyTorch"
    target = next(iter(read(index).targets.values()))
    onnx = {"ada": replace(target, programs={A: f"torch/{B[:32]}.onnx"})}
    assert replace(read(index), targets=onnx).reference_library == "onnxruntime"


def test_a_written_index_is_read_back() -> None:
    index = read(document())
    assert (index.model, index.precision, index.reference) == ("vit", "float16", True)
    assert [(entry.name, entry.keyword, entry.dtype) for entry in index.inputs] == [
        ("image", False, "float32"),
        ("mask", True, "bool"),
    ]
    assert index.inputs[0].shape == (("sym", 0), 3) and index.outputs[0].shape == (("mul", 2, ("sym", 0)), 3)
    assert [profile.name for profile in index.profiles] == ["single", "batch"]
    assert index.profiles[1].shapes == (ShapeRange((2, 3), (4, 3), (8, 3)), ShapeRange((2,), (4,), (8,)))
    assert list(index.weights) == [0, 1] and index.weights[0].path == f"weights/{B[:32]}"
    hopper = index.targets["hopper"]
    assert (hopper.sm, hopper.sms, hopper.toolchain, hopper.platform) == (90, (90,), "tensorrt", "windows-x86_64")
    assert hopper.engines == {"encoder.0": "engines/hopper/encoder.0.plan"}
    assert hopper.layers == {"encoder.0": "engines/hopper/encoder.0.layers.json"}
    assert hopper.programs == {A: f"torch/{B[:32]}.pt2", B: f"torch/{D[:32]}.pt2"}
    assert [part.name for part in hopper.partitions.partitions] == ["encoder.0", "p1"]


def document_with_a_number() -> Any:
    """Return the JSON of the index of a model that returns a tensor and a number."""
    index = document()
    index["schema"] = "trtbuild.package/2"
    index["outputs"].append({"name": "rows", "dtype": "int64", "shape": []})
    number = {"kind": "number", "type": "int", "index": 1}
    index["output_tree"] = {"kind": "tuple", "items": [index["output_tree"], number]}
    for target in index["targets"].values():
        target["partitions"]["outputs"].append(target["partitions"]["outputs"][0])
    return index


def test_an_index_with_a_number_has_the_second_format() -> None:
    index = read(document_with_a_number())
    assert index.schema == "trtbuild.package/2"
    assert json.loads(index_to_bytes(index))["output_tree"] == document_with_a_number()["output_tree"]
    assert read(document()).schema == "trtbuild.package/1"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("schema", "trtbuild.package/1", "has a number, which trtbuild.package/1 does not have"),
        ("type", "float", "the number 'rows' is not a scalar of its type"),
        ("type", "complex", "the number 'rows' is not a scalar of its type"),
        ("index", 0, "the number 'output_0' is not a scalar of its type"),
        ("index", 2, "its output structure does not fit its outputs"),
        ("index", "1", "its output structure does not fit its outputs"),
    ],
)
def test_rejects_a_number_that_is_not_one_of_the_outputs(field: str, value: Any, text: str) -> None:
    index = document_with_a_number()
    (index if field == "schema" else index["output_tree"]["items"][1])[field] = value
    with pytest.raises(PackageDamaged) as raised:
        read(index)
    assert text in str(raised.value)


def test_later_fields_are_optional_and_unknown_fields_are_ignored() -> None:
    old = document()
    del old["reference"]
    for target in old["targets"].values():
        for field in ("sms", "layers", "version_compatible"):
            del target[field]
    index = read({**old, "something": "new"})
    assert not index.reference
    assert index.targets["ada"].sms == (89,) and not index.targets["ada"].layers
    assert not index.targets["ada"].version_compatible


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from value_paths(item, (*path, key))


def changed_at(path: tuple[Any, ...], value: Any) -> Any:
    """Return the JSON of an index in which the value at `path` is replaced with `value`."""
    index = copy.deepcopy(document())
    inner = index
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return index


def test_rejects_two_partitions_with_one_name_even_if_one_has_no_outputs() -> None:
    index = document()
    partitions = index["targets"]["ada"]["partitions"]["partitions"]
    partitions.insert(0, {**partitions[0], "inputs": [], "outputs": []})
    with pytest.raises(PackageDamaged, match=r"two partitions are called 'encoder\.0'"):
        read(index)


@pytest.mark.parametrize("wrong", [None, "x", -1, 1.5, [], {}, True, [["sym", 9]], "../x"], ids=repr)
def test_every_changed_index_is_damaged_or_valid(wrong: Any) -> None:
    rejected = 0
    for path in value_paths(document()):
        try:
            read(changed_at(path, wrong))
        except (PackageDamaged, PackageTooNew):
            rejected += 1
    assert rejected > 20


@pytest.mark.parametrize("wrong", [None, {"x": 1}, 1.5], ids=repr)
def test_a_value_of_another_type_is_damage(wrong: Any) -> None:
    for path in value_paths(document()):
        with pytest.raises(PackageDamaged):
            read(changed_at(path, wrong))
            pytest.fail(f"{path} may be {wrong!r}")


WRONG = {
    "a file without a digest": (("files", "names.json", "sha256"), "abc", "a file has no digest or size"),
    "a negative size": (("files", "names.json", "size"), -1, "a file has no digest or size"),
    "an engine that is not a file": (
        ("targets", "ada", "engines", "encoder.0"),
        "engines/ada/other.plan",
        "'engines/ada/other.plan' is not a file of the package",
    ),
    "no engine": (("targets", "ada", "engines"), {}, "the partition 'encoder.0' has no engine"),
    "no program": (("targets", "ada", "partitions", "programs"), {}, "the partition 'encoder.0' has no program"),
    "a program that is not a file": (
        ("targets", "ada", "partitions", "programs", B),
        A,
        "a program is not a file of the package",
    ),
    "a weight of another size": (("weights", "0", "shape"), [2, 4], "the weight 'w' is not a file of the package"),
    "a value without a source": (
        ("targets", "ada", "partitions", "partitions", 1, "inputs", 0, 0),
        "p7:0",
        "the partition 'p1' reads 'p7:0', which nothing produces",
    ),
    "a partition that reads its own output": (
        ("targets", "ada", "partitions", "partitions", 0, "inputs", 0, 0),
        "encoder.0:0",
        "the partition 'encoder.0' reads 'encoder.0:0', which nothing produces",
    ),
    "an output without a source": (
        ("targets", "ada", "partitions", "outputs"),
        ["p1:3"],
        "an output is 'p1:3', which nothing produces",
    ),
    "a symbol without a dim": (("inputs", 0, "shape"), [["sym", 1], 3], "has a symbol without a dim"),
    "a symbol without a number": (("inputs", 0, "shape"), [["sym"], 3], "a symbol is named by one number, not []"),
    "an object as an operand": (("inputs", 0, "shape"), [["add", {"add": 1}, ["sym", 0]], 3], "is not a size"),
    "an operator that does not exist": (("inputs", 0, "shape"), [["sqrt", ["sym", 0]], 3], "is not a size"),
    "an unknown dtype": (("inputs", 0, "dtype"), "float31", "'float31' is not an element type"),
    "profiles of other inputs": (("profiles", 0, "shapes"), {}, "a profile has shapes for other inputs"),
    "shapes of another rank": (
        ("profiles", 0, "shapes", "mask", "min"),
        [1, 1],
        "a profile's shapes of 'mask' have another rank than the input",
    ),
    "no profile": (("profiles",), [], "it has no profile"),
    "no target": (("targets",), {}, "it has no target"),
    "an output structure of other outputs": (
        ("output_tree",),
        {"kind": "tensor", "index": 1},
        "its output structure does not fit its outputs",
    ),
    "a reference that is not a boolean": (("reference",), "yes", "reference is neither true nor false"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_index_is_described(case: str) -> None:
    path, value, text = WRONG[case]
    with pytest.raises(PackageDamaged, match=r"index\.json cannot be used: ") as raised:
        read(changed_at(path, value))
    assert text in str(raised.value)


def test_deep_nesting_is_damage() -> None:
    with pytest.raises(PackageDamaged):
        read_index(b'{"schema": "trtbuild.package/1", "files": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize("path", ["index.json", "engines/ada/encoder.layers.3#1.plan", "weights/aa"])
def test_accepts_paths_inside_a_package(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../x", "a//b", "./a", "a\\b", "C:/x", "a\0", 3, None])
def test_rejects_paths_outside_a_package(path: object) -> None:
    with pytest.raises(ValueError, match="is not a path inside a package"):
        check_path(path)


def document_with_state(**changes: Any) -> Any:
    """Return the JSON of an index with one state buffer. Output 0 is its new value."""
    index = document()
    slot = min(map(int, index["weights"]))
    state = {"name": "cache.keys", "slot": slot, "output": 0, "range": [0.0, 1.0], **changes}
    return {**index, "schema": "trtbuild.package/3", "state": [state]}


def test_the_state_is_optional_and_needs_the_third_format() -> None:
    assert "state" not in document() and read(document()).state == ()
    index = read(document_with_state())
    assert index.state[0].name == "cache.keys" and index.state[0].input_name == "state.cache.keys"
    assert json.loads(index_to_bytes(index))["state"] == document_with_state()["state"]
    assert json.loads(index_to_bytes(index))["schema"] == "trtbuild.package/3"
    with pytest.raises(PackageDamaged, match="it has a state"):
        read({**document_with_state(), "schema": "trtbuild.package/1"})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": 5},
        {"slot": 10_000},
        {"slot": "0"},
        {"output": -1},
        {"output": 9},
        {"range": [1]},
        {"range": 5},
    ],
)
def test_rejects_an_invalid_state(changes: Any) -> None:
    with pytest.raises(PackageDamaged):
        read(document_with_state(**changes))


def test_rejects_two_states_of_one_name() -> None:
    index = document_with_state()
    with pytest.raises(PackageDamaged, match="two states have one name"):
        read({**index, "state": index["state"] * 2})


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "namedtuple", "keys": ["a"]},
        {"kind": "dataclass", "keys": ["a"], "type": None},
        {"kind": "namedtuple", "keys": ["a"], "type": 3},
        {"kind": "dict", "keys": [["a"]]},
        {"kind": "dict", "keys": [{}]},
        {"kind": "dict", "keys": {"a": "b"}},
        {"kind": "dict"},
    ],
)
def test_rejects_an_output_structure_that_cannot_be_restored(change: dict[str, Any]) -> None:
    index = document()
    index["output_tree"] = {**change, "items": [index["output_tree"]]}
    with pytest.raises(PackageDamaged):
        read(index)
    index["output_tree"] = {"kind": "dict", "keys": ["a"], "items": index["output_tree"]["items"]}
    read(index)


@pytest.mark.parametrize("constant", [{}, {"value": {"$f64": "x"}}, {"value": 1.5}])
def test_rejects_a_constant_output_without_a_value(constant: dict[str, Any]) -> None:
    index = document()
    index["output_tree"] = {"kind": "tuple", "items": [index["output_tree"], {"kind": "constant", **constant}]}
    with pytest.raises(PackageDamaged):
        read(index)
    index["output_tree"]["items"][1] = {"kind": "constant", "value": 3}
    read(index)
