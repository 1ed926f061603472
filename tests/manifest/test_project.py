"""Whole projects: their values, their errors, and the modules that are imported when a project is loaded."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trtbuild.core.model.builder_settings import BuilderSettings
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
from trtbuild.errors import ManifestErrors, UsageError

from .conftest import BASE, Files

EXAMPLE = """\
version: 1
include: [profiles.yaml]            # paths relative to this file
defaults: {toolchain: tensorrt-rtx, targets: [ada]}   # any model field except source
targets:
  ada:       {sm: 89}                           # compatibility: exact (default) | same_compute_capability | ampere_plus
  blackwell: {sm: 120}                          # platform: this machine's by default; or windows-x86_64
  hopper:    {sm: 90, toolchain: tensorrt, version: "8.6.0"}    # a version is optional
profiles:
  photo:
    image: {min: [1, 3, 224, 224], opt: [8, 3, 224, 224], max: [32, 3, 224, 224]}
models:
  vit:
    source: {python: "models.vit:build", kwargs: {depth: 12}}   # a callable that returns an nn.Module
    weights: weights/vit.safetensors            # optional; loaded strictly into the module
    inputs:
      image: {dtype: float32}                   # dtype; keyword: true for a keyword-only argument
    dims:                                       # optional names and relations; ranges come from the profiles
      batch: {at: [image.0]}                    # one dim may have several axes: at: [query.2, key.2]
      height: {at: [image.2], multiple_of: 32}
    profiles: [single, photo]
    targets: [ada, blackwell]
    precision: float32                          # float32 | float16 | bfloat16
    partition: {granularity: model, min_block_size: 5, torch_executed_ops: [], require_full_compilation: false}
    builder: {optimization_level: 3, workspace: 1GiB}
    outputs: {package: dist/vit, plans: dist/plans}
"""
SINGLE = """\
profiles:
  single:
    image: {shape: [1, 3, 224, 224]}            # static: min = opt = max
"""


def write_example(files: Files) -> Files:
    """Write `EXAMPLE`, and the files that it names."""
    return files.manifest(EXAMPLE).write("profiles.yaml", SINGLE).write("weights/vit.safetensors")


def without_places(model: Model) -> dict[str, object]:
    return {name: value for name, value in vars(model).items() if name not in ("origin", "places")}


def test_the_example_manifest_has_the_right_values(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.manifest.resolve.this_platform", lambda: "linux-aarch64")
    project = write_example(files).load()
    assert project.files == ("profiles.yaml", "trtbuild.yaml")
    single = (1, 3, 224, 224)
    assert project.models == (
        Model(
            name="vit",
            source=Source("python", "models.vit:build", {"depth": 12}, roots=(".",)),
            inputs=(Input("image", "float32"),),
            profiles=(
                Profile("single", (("image", ShapeRange(single, single, single)),)),
                Profile("photo", (("image", ShapeRange(single, (8, 3, 224, 224), (32, 3, 224, 224))),)),
            ),
            targets=(Target("ada", 89, platform="linux-aarch64"), Target("blackwell", 120, platform="linux-aarch64")),
            origin=Origin("trtbuild.yaml", 12, 3),
            dims=(NamedDim("batch", (("image", 0),)), NamedDim("height", (("image", 2),), 32)),
            weights="weights/vit.safetensors",
            precision="float32",
            partition=PartitionSettings(),
            builder=BuilderSettings(optimization_level=3, workspace=1 << 30),
            outputs=(("package", "dist/vit"), ("plans", "dist/plans")),
        ),
    )


def test_places_name_the_line_of_each_field(files: Files) -> None:
    model = write_example(files).model()
    lines = {path: (origin.file, origin.line, origin.column) for path, origin in model.places.items()}
    expected = {
        "source": ("trtbuild.yaml", 13, 5),
        "weights": ("trtbuild.yaml", 14, 5),
        "inputs.image": ("trtbuild.yaml", 16, 7),
        "dims.batch": ("trtbuild.yaml", 18, 7),
        "dims.height": ("trtbuild.yaml", 19, 7),
        "profiles.photo": ("trtbuild.yaml", 9, 3),
        "profiles.photo.image": ("trtbuild.yaml", 10, 5),
        "profiles.single.image": ("profiles.yaml", 3, 5),
        "precision": ("trtbuild.yaml", 22, 5),
        "partition.min_block_size": ("trtbuild.yaml", 23, 37),
        "builder.workspace": ("trtbuild.yaml", 24, 38),
        "targets.ada": ("trtbuild.yaml", 5, 3),
        "targets.blackwell": ("trtbuild.yaml", 6, 3),
        "outputs.package": ("trtbuild.yaml", 25, 15),
        "outputs.plans": ("trtbuild.yaml", 25, 34),
        "toolchain": ("trtbuild.yaml", 3, 12),
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_the_smallest_manifest_has_all_defaults(files: Files) -> None:
    model = files.model(BASE)
    assert model.builder == BuilderSettings()
    assert model.partition == PartitionSettings()
    assert (model.precision, model.weights, model.dims) == ("float32", None, ())
    assert model.outputs == (("package", "dist/net"),)
    assert model.targets[0].toolchain == "tensorrt-rtx"


LONG = """\
version: 1
targets:
  ada: {sm: 89, compatibility: exact, toolchain: tensorrt-rtx}
profiles:
  fixed:
    query: {min: [1, 12, 4], opt: [1, 12, 4], max: [1, 12, 4]}
    key: {min: [1, 12, 4], opt: [1, 12, 4], max: [1, 12, 4]}
  some:
    query: {min: [1, 12, 4], opt: [2, 12, 4], max: [3, 12, 4]}
    key: {min: [1, 12, 4], opt: [2, 12, 4], max: [3, 12, 4]}
models:
  net:
    source: {python: "net:build", kwargs: {a: 1, b: {c: 2, d: 3}}, deps: [a, b], env: [A, B], cacheable: true}
    inputs:
      query: {dtype: float32, keyword: false}
      key: {dtype: float32, keyword: false}
    dims:
      batch: {at: [query.0, key.0], multiple_of: 1}
      heads: {at: [query.1]}
    profiles: [fixed, some]
    targets: [ada]
    toolchain: tensorrt-rtx
    precision: float32
    partition: {granularity: [model], torch_executed_ops: [aten.cumsum, aten.sort.stable]}
    builder: {workspace: 1536, tf32: true, profiling_verbosity: detailed}
    outputs: {plans: dist/plans, package: dist/net}
"""
SHORT = """\
version: 1
defaults:
  targets: [ada]
  builder: {workspace: 1.5KiB}
  outputs: {package: ./dist//net/, plans: dist/x/../plans}
targets: {ada: {sm: 89}}
profiles:
  some:
    key: {max: [3, 12, 4], min: [1, 12, 4], opt: [2, 12, 4]}
    query: &some {opt: [2, 12, 4], max: [3, 12, 4], min: [1, 12, 4]}
  fixed: {key: {shape: [1, 12, 4]}, query: {shape: [1, 12, 4]}}
models:
  net:
    profiles: [fixed, some]
    dims:
      heads: query.1
      batch: [key.0, query.0]
    inputs: {query: , key: {}}
    partition:
      torch_executed_ops: [torch.ops.aten.sort.stable, "aten::cumsum", aten.cumsum.default, torch.ops.aten.cumsum]
    source: {env: [B, A, A], deps: [./b, a], kwargs: {b: {d: 3, c: 2}, a: 1}, python: "net:build"}
"""


def test_short_and_long_forms_have_equal_values(files: Files) -> None:
    long = files.model(LONG)
    assert without_places(files.model(SHORT)) == without_places(long)


def test_the_order_of_keys_does_not_matter_outside_inputs(files: Files) -> None:
    expected = without_places(files.model(LONG))
    rng = random.Random(0)

    def shuffled(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            items = [(key, shuffled(inner, key)) for key, inner in value.items()]
            if name != "inputs":
                rng.shuffle(items)
            return dict(items)
        return value

    for _ in range(5):
        text = yaml.safe_dump(shuffled(yaml.safe_load(LONG)), sort_keys=False)
        assert without_places(files.model(text)) == expected


def test_all_problems_of_all_files_are_reported_at_once(files: Files) -> None:
    files.write("manifests/b.yaml", BASE.replace("sm: 89", "sm: «88").replace("  net:", "  net2:"))
    files.write("manifests/a.yaml", BASE.replace("net:build", "net").replace('{python: "net"}', '{python: «"net"}'))
    files.write("manifests/c.yaml", "a: b: c\n")
    files.marks.add(("manifests/c.yaml", 1, 5))
    problems = files.assert_refused(None, "unknown SM 88", "is not the name of a callable", "not YAML")
    assert [problem.file for problem in problems] == ["manifests/a.yaml", "manifests/b.yaml", "manifests/c.yaml"]


def test_model_names_are_unique_in_the_project_and_target_names_in_a_manifest(files: Files) -> None:
    files.write("manifests/a.yaml", BASE)
    files.write("manifests/b.yaml", BASE.replace("sm: 89", "sm: 120").replace("  net:", "  other:"))
    project = files.load()
    assert [(model.name, model.targets[0].sm) for model in project.models] == [("net", 89), ("other", 120)]
    files.write("manifests/b.yaml", BASE.replace("  net:", "  «net:"))
    files.assert_refused(None, "model 'net' is already defined at manifests/a.yaml:8:3")


def test_rejects_models_that_two_manifests_include(files: Files) -> None:
    files.write("lib/models.yaml", BASE.replace("  net:", "  «net:"))
    files.write("manifests/a.yaml", "version: 1\ninclude: [../lib/models.yaml]\n")
    files.write("manifests/b.yaml", "version: 1\ninclude: [../lib/models.yaml]\n")
    files.assert_refused(None, "manifests/a.yaml and manifests/b.yaml both include lib/models.yaml")


def test_rejects_a_project_without_models(files: Files) -> None:
    files.assert_refused("«version: 1\nmodels:\n", "no model is declared")


def test_the_error_without_a_manifest_shows_an_example(files: Files) -> None:
    with pytest.raises(UsageError) as caught:
        files.load()
    assert not isinstance(caught.value, ManifestErrors)
    assert "trtbuild.yaml" in str(caught.value)
    assert "manifests/*.yaml" in str(caught.value)
    example = str(caught.value.hint).partition("looks like this:\n")[2]
    assert files.model(example).name == "net"


def test_importing_the_package_does_not_import_pydantic_yaml_or_torch() -> None:
    code = "import sys, trtbuild.manifest; print([m for m in ('pydantic', 'yaml', 'torch') if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_loading_does_not_import_torch_or_tensorrt(files: Files) -> None:
    files.manifest(BASE)
    code = (
        "import sys, pathlib, trtbuild.manifest as m; m.load(pathlib.Path(sys.argv[1]));"
        "print([n for n in ('torch', 'tensorrt_rtx', 'tensorrt', 'numpy', 'click', 'rich') if n in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code, str(files.root)], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_directory_of_the_project_does_not_matter(tmp_path: Path) -> None:
    first, second = Files(tmp_path / "a"), Files(tmp_path / "somewhere" / "b")
    assert write_example(first).load() == write_example(second).load()
