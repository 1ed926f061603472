"""The results of a build of the examples: engines for each target, correct indexes of packages, and shared steps."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BuiltExamples
from tests.examples.conftest import Example, example_names
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.shapes import profile_sizes
from trtbuild.core.planning.expand import engine_job, input_range, symbol_values
from trtbuild.core.values.codec import encode
from trtbuild.core.values.expressions import evaluate

Find = Callable[[str], Example]


def test_the_build_writes_all_models(built_examples: BuiltExamples) -> None:
    document = built_examples.document
    assert document["ok"] and not document["errors"]
    assert {output["model"] for output in document["outputs"]} == set(example_names())


@pytest.mark.parametrize("name", example_names())
def test_a_package_has_engines_for_each_architecture_and_the_files_of_its_index(
    name: str, built_examples: BuiltExamples
) -> None:
    index = built_examples.index(name)
    assert sorted(target["sm"] for target in index["targets"].values()) == [86, 89, 120]
    for target in index["targets"].values():
        engine_names = {part["name"] for part in target["partitions"]["partitions"] if part["kind"] == "tensorrt"}
        assert set(target["engines"]) == engine_names and engine_names
        assert set(target["engines"].values()) <= set(index["files"])
    root = built_examples.project / "dist" / name
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {*index["files"], "index.json", "names.json"}
    for path, entry in index["files"].items():
        data = (root / path).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry["sha256"], entry["size"])


def test_engines_of_different_architectures_differ(built_examples: BuiltExamples) -> None:
    for name in example_names():
        targets = built_examples.index(name)["targets"].values()
        plans = [built_examples.index(name)["files"][path]["sha256"] for t in targets for path in t["engines"].values()]
        assert len(set(plans)) == len(plans)


@pytest.mark.parametrize("name", ["three_parts", "chosen"])
def test_models_with_an_operator_in_pytorch_have_three_partitions(name: str, find_example: Find) -> None:
    parts = find_example(name).partitions.partitions
    assert [part.kind for part in parts] == ["tensorrt", "torch", "tensorrt"]
    operator = {"three_parts": "aten.sort.stable", "chosen": "aten.cumsum.default"}[name]
    assert list(parts[1].reasons) == [operator]


@pytest.mark.parametrize("name", [name for name in example_names() if name not in ("vit", "three_parts", "chosen")])
def test_all_other_models_are_one_engine(name: str, find_example: Find) -> None:
    assert [(part.name, part.kind) for part in find_example(name).partitions.partitions] == [("model", "tensorrt")]


def test_equal_layers_share_one_conversion(find_example: Find, built_examples: BuiltExamples) -> None:
    layers = [f"layers.{number}" for number in range(4)]
    assert [part.name for part in find_example("vit").partitions.partitions] == ["p0", *layers, "p5"]
    assert len({built_examples.key(f"vit/convert/{layer}") for layer in layers}) == 1
    assert len({built_examples.key(f"vit/engine/{layer}@ada") for layer in layers}) == 4
    verdicts = Counter(
        step["verdict"] for step in built_examples.document["steps"] if step["id"].startswith("vit/convert/layers")
    )
    assert verdicts["run"] <= 1  # 0 if the cache had the conversion before the build


@pytest.mark.parametrize("name", example_names())
def test_the_range_of_a_partition_input_contains_the_sizes_at_random_points(name: str, find_example: Find) -> None:
    example = find_example(name)
    rng = random.Random(name)
    for profile in example.model.profiles:
        low, high = (profile_sizes(example.shapes, profile, which) for which in ("min", "max"))
        opt = symbol_values(example.shapes, profile_sizes(example.shapes, profile, "opt"))
        for part in example.partitions.partitions:
            for _, tensor_type in part.inputs:
                bounds = input_range(tensor_type.shape, example.shapes, profile)
                assert bounds.opt == tuple(evaluate(size, opt) for size in tensor_type.shape)
                for _ in range(50):
                    symbols = [
                        rng.randint(smallest // symbol.multiple_of, largest // symbol.multiple_of)
                        for smallest, largest, symbol in zip(low, high, example.shapes.symbols, strict=True)
                    ]
                    for size, least, most in zip(tensor_type.shape, bounds.min, bounds.max, strict=True):
                        assert least <= evaluate(size, symbols) <= most


def test_computed_tensors_have_the_sizes_of_the_expressions(find_example: Find) -> None:
    for name in ("vit", "three_parts", "detector"):
        example = find_example(name)
        for _, sizes in example.points:
            values = example.values(example.inputs(sizes), example.in_torch)
            symbols = symbol_values(example.shapes, sizes)
            for part in example.partitions.partitions:
                for source, tensor_type in part.inputs:
                    assert tuple(values[source].shape) == tuple(evaluate(size, symbols) for size in tensor_type.shape)
                for number, tensor_type in enumerate(part.outputs):
                    value = values[f"{part.name}:{number}"]
                    assert tuple(value.shape) == tuple(evaluate(size, symbols) for size in tensor_type.shape)
                    assert str(value.dtype) == f"torch.{tensor_type.dtype}"


#: A program that compiles the job on standard input, and prints the digest of the engine. Its argument is the store's path.
_COMPILE = """
import sys
from pathlib import Path
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.values.codec import decode
from trtbuild.store.local.local import LocalStore
from trtbuild.toolchain.compiling.compiler import compile_engine
import hashlib, json
store = LocalStore(Path(sys.argv[1]))
print(hashlib.sha256(compile_engine(decode(EngineJob, json.load(sys.stdin)), store.get_bytes).plan).hexdigest())
"""


def test_another_process_builds_the_same_bytes(find_example: Find, built_examples: BuiltExamples) -> None:
    """`trtbuild cache verify --rebuild` relies on equal bytes: it builds cached engines again, and compares the bytes."""
    example = find_example("three_parts")
    target = example.model.targets[1]
    step = f"engine/p0@{target.name}"
    parts = dict(example.record(step).recipe.parts)
    part = example.partitions.partitions[0]
    table = json.loads(example.output("trace", "weights"))
    weights = [Weight(e["dtype"], tuple(e["shape"]), e["sha256"]) for e in (table[str(k)] for k in range(len(table)))]
    settings = example.model.builder.__class__(**parts["settings"])
    job = engine_job(
        example.model, example.shapes, part, str(parts["onnx"]), weights, settings, target, parts["toolchain"][1]
    )
    process = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(built_examples.cache)],
        input=json.dumps(encode(job)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == example.record(step).outputs["plan"].sha256
