"""The values that are in the recipe of each stage, and those that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.core.recipe_values import (
    ENVIRONMENT,
    MODEL,
    VERSIONS,
    WEIGHTS,
    A,
    B,
    Build,
    C,
    recipe_of_each_stage,
    shapes_of,
)
from trtbuild.core.model.builder_settings import SETTINGS_IN_EVERY_KEY, BuilderSettings
from trtbuild.core.model.precisions import Precisions, module_precisions
from trtbuild.core.model.spec import Input, PartitionSettings, Profile, ShapeRange
from trtbuild.core.recipes import key_fields, keys
from trtbuild.core.recipes.declared import trace_declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.lookup_recipes import matches_without_versions, partition_with_any_parser, with_any_versions
from trtbuild.core.values.encoding import encode
from trtbuild.toolchain.libraries.releases import release

# -- trace


def trace_key(**changes: Any) -> str:
    return Build(replace(MODEL, **changes)).trace().key


def test_arguments_of_a_model_are_typed() -> None:
    values: list[Any] = [1, 1.0, True, "1", None, "", [1], [[1]], {"a": 1}, 0, 0.0, -0.0, False]
    distinct = {trace_key(source=replace(MODEL.source, kwargs={"x": value})) for value in values}
    assert len(distinct) == len(values)
    assert trace_key(source=replace(MODEL.source, kwargs={})) not in distinct


def test_the_order_of_arguments_in_a_manifest_does_not_matter() -> None:
    first = replace(MODEL.source, kwargs={"a": {"x": 1, "y": 2}, "b": 2})
    second = replace(MODEL.source, kwargs={"b": 2, "a": {"x": 1, "y": 2}})
    assert trace_key(source=first) == trace_key(source=second)


def test_keyword_inputs_are_distinguished_by_name() -> None:
    """Two keyword inputs have the same type and shape. If they were swapped, each would get the tensor of the other."""
    inputs = (Input("image"), Input("a", keyword=True), Input("b", keyword=True))
    size = ShapeRange((1,), (1,), (1,))

    def key(*inputs: Input) -> str:
        profile = Profile("p", tuple((entry.name, size) for entry in inputs))
        return trace_key(inputs=inputs, profiles=(profile,), dims=())

    assert len({key(*inputs), key(inputs[0], inputs[2], inputs[1]), key(inputs[0], inputs[1], Input("b"))}) == 3


def test_the_axes_that_share_a_dim_are_in_the_key_of_the_trace() -> None:
    assert trace_key() != trace_key(dims=())


def test_names_of_dims_are_not_in_the_key_of_the_trace() -> None:
    assert trace_key() == trace_key(dims=(replace(MODEL.dims[0], name="other"),))


def test_opt_of_the_first_profile_is_the_example_of_the_trace() -> None:
    def key(*opts: int) -> str:
        shapes = [ShapeRange((2,), (opt,), (8,)) for opt in opts]
        profiles = tuple(Profile(f"p{k}", (("image", shape),)) for k, shape in enumerate(shapes))
        return trace_key(inputs=MODEL.inputs[:1], profiles=profiles, dims=())

    assert key(4, 4) != key(5, 4)
    assert key(4, 4) == key(4, 5)


def test_a_trace_depends_on_names_dtypes_and_shapes_of_a_weights_file_not_on_its_values() -> None:
    def key(table: Any) -> str:
        return keys.user_code(trace_declared(MODEL, shapes_of(MODEL), table, "linux-x86_64", VERSIONS), []).key

    tables = [
        None,
        [],
        [("w", "float32", (2, 3))],
        [("v", "float32", (2, 3))],
        [("w", "float16", (2, 3))],
        [("w", "float32", (6,))],
    ]
    assert len({key(table) for table in tables}) == len(tables)


def test_every_observation_is_in_the_key_of_the_trace() -> None:
    kinds = [Dependency(kind, "a.py") for kind in ("file", "listing", "environment", "distribution")]
    first, second = Observation(kinds[0], A), Observation(Dependency("file", "b.py"), A)
    variants = [(), (first, second), (Observation(kinds[0], B),), (Observation(kinds[0], "absent"),)]
    variants += [(Observation(dependency, A),) for dependency in kinds]
    declared_parts = trace_declared(MODEL, shapes_of(MODEL), None, "linux-x86_64", VERSIONS)
    assert len({keys.user_code(declared_parts, observations).key for observations in variants}) == len(variants)


# -- lower, partition, convert


def test_versions_are_in_trace_lower_partition_convert_and_verify_and_in_no_engine() -> None:
    names = {stage: [name for name, _ in recipe.parts] for stage, recipe in Build().recipes().items()}
    assert {stage for stage, parts in names.items() if "versions" in parts} == {
        "trace",
        "lower",
        "partition",
        "convert",
        "verify",
    }


def test_each_version_is_in_the_keys_of_trace_lower_partition_and_convert() -> None:
    for name in VERSIONS:
        newer = {**VERSIONS, name: "99"}
        assert Build().trace(newer).key != Build().trace().key
        assert keys.lower(A, B, Precisions(), newer).key != keys.lower(A, B, Precisions(), VERSIONS).key
        assert keys.convert(A, 22, newer).key != keys.convert(A, 22, VERSIONS).key
        old, new = (keys.partition(A, B, MODEL.partition, "tensorrt", "11", 22, v).key for v in (VERSIONS, newer))
        assert old != new


def test_the_partition_step_of_an_onnx_model_has_the_version_of_the_opset_downgrade() -> None:
    def parts(opset: int, *, changes_opset: bool) -> list[str]:
        recipe = keys.partition(
            A, B, PartitionSettings(), "tensorrt", "11", opset, VERSIONS, changes_opset=changes_opset
        )
        return [name for name, _ in recipe.parts]

    assert parts(17, changes_opset=True) == [*parts(17, changes_opset=False), "lowered"]
    assert parts(20, changes_opset=True) == parts(20, changes_opset=False)


def test_rules_for_int64_are_in_the_key_if_int64_is_narrowed() -> None:
    def parts(**narrows: bool) -> dict[str, object]:
        return dict(keys.partition(A, B, PartitionSettings(), "tensorrt", "8.6.0", 17, VERSIONS, **narrows).parts)

    assert parts(narrows_int64=True) == {**parts(), "narrowed": keys.INT64_RULES_VERSION}
    assert "narrowed" not in parts(narrows_int64=False)
    lookup_recipe = partition_with_any_parser(
        keys.partition(A, B, PartitionSettings(), "tensorrt", "8.6.0", 17, VERSIONS, narrows_int64=True)
    )
    # a partition that was made with other rules is not accepted
    assert ("narrowed", keys.INT64_RULES_VERSION) in lookup_recipe.parts


def test_module_paths_are_in_the_key_of_lower_because_no_graph_text_has_them() -> None:
    assert keys.lower(A, B, Precisions(), VERSIONS).key != keys.lower(A, C, Precisions(), VERSIONS).key


def test_a_precision_for_the_whole_model_is_its_name_in_the_key() -> None:
    """The part `precision` has another form only if the manifest also has precisions for single modules."""
    recipe = keys.lower(A, B, Precisions("float16"), VERSIONS)
    assert dict(recipe.parts)["precision"] == "float16"
    mixed = Precisions("float16", module_precisions({"float32": ["*.norm"]}))
    others = [mixed, replace(mixed, default="float32"), Precisions("float16", module_precisions({"float32": ["norm"]}))]
    assert len({keys.lower(A, B, each, VERSIONS).key for each in (Precisions("float16"), *others)}) == 4


def test_module_paths_are_in_the_key_of_the_partition_step_only_if_granularity_is_set() -> None:
    def key(modules: str, settings: PartitionSettings) -> str:
        return keys.partition(A, modules, settings, "tensorrt", "11", 22, VERSIONS).key

    assert key(B, PartitionSettings()) == key(C, PartitionSettings())
    assert key(B, PartitionSettings(("encoder.*",))) != key(C, PartitionSettings(("encoder.*",)))


def test_the_parser_and_its_opset_are_in_the_key_of_the_partition_step() -> None:
    def key(toolchain: str = "tensorrt", version: str = "11", opset: int = 22) -> str:
        return keys.partition(A, B, PartitionSettings(), toolchain, version, opset, VERSIONS).key

    assert len({key(), key("tensorrt-rtx"), key(version="11.1"), key(opset=23)}) == 4


def test_the_key_of_a_conversion_has_its_graph_and_opset() -> None:
    assert [name for name, _ in keys.convert(A, 22, VERSIONS).parts] == ["graph", "opset", "versions"]
    assert keys.convert(A, 22, VERSIONS).key != keys.convert(A, 23, VERSIONS).key
    assert keys.convert(A, 22, VERSIONS).key != keys.convert(B, 22, VERSIONS).key


def test_only_conversions_to_older_opsets_have_the_version_of_the_downgrade() -> None:
    assert "lowered" not in dict(keys.convert(A, 18, VERSIONS).parts)
    assert dict(keys.convert(A, 17, VERSIONS).parts)["lowered"] == keys.OPSET_DOWNGRADE_VERSION


# -- engine


def engine_key(**changes: Any) -> str:
    return keys.engine(replace(Build().engine_job(), **changes), ENVIRONMENT).key


def test_the_weights_of_an_engine_and_their_order_are_in_its_key() -> None:
    first, second = WEIGHTS[0], replace(WEIGHTS[0], sha256=C)
    variants = [
        (),
        (first,),
        (second,),
        (first, second),
        (second, first),
        (first, first),
        (replace(first, shape=(3, 2)),),
        (replace(first, dtype="int32"),),
    ]
    assert len({engine_key(weights=weights) for weights in variants}) == len(variants)


def test_all_profiles_and_their_order_are_in_the_key_of_an_engine() -> None:
    first, second = ShapeRange((1,), (2,), (3,)), ShapeRange((1,), (3,), (3,))
    variants = [
        ((first,),),
        ((second,),),
        ((first,), (second,)),
        ((second,), (first,)),
        ((first, second),),
        ((first,), (first,)),
        (),
    ]
    assert len({engine_key(profiles=profiles) for profiles in variants}) == len(variants)


def test_the_key_of_an_engine_distinguishes_min_opt_and_max() -> None:
    variants = [ShapeRange((1,), (2,), (2,)), ShapeRange((1,), (1,), (2,)), ShapeRange((1, 2), (1, 2), (1, 2))]
    assert len({engine_key(profiles=((shape,),)) for shape in variants}) == len(variants)


def test_toolchain_version_platform_and_environment_are_in_the_key_of_an_engine() -> None:
    job = Build().engine_job()
    target = job.target
    distinct = {
        engine_key(),
        engine_key(toolchain_version="1.4.0.77"),
        engine_key(target=replace(target, toolchain="tensorrt")),
        engine_key(target=replace(target, platform="windows-x86_64")),
        engine_key(target=replace(target, compatibility="ampere_plus")),
        keys.engine(job, {}).key,
        keys.engine(job, {**ENVIRONMENT, "CUDA_MODULE_LOADING": "LAZY"}).key,
    }
    assert len(distinct) == 7


@pytest.mark.parametrize(
    ("toolchain", "version", "weakly_typed"),
    [
        ("tensorrt", "8.6.0", True),
        ("tensorrt", "9.0.1", False),
        ("tensorrt", "11.0.0.114", False),
        ("tensorrt-rtx", "1.4.0.76", False),
    ],
)
def test_rules_for_layer_types_are_in_the_key_if_the_network_is_weakly_typed(
    toolchain: Any, version: str, weakly_typed: bool
) -> None:
    job = Build().engine_job()
    changed = replace(job, target=replace(job.target, toolchain=toolchain), toolchain_version=version)
    parts = dict(keys.engine(changed, ENVIRONMENT).parts)
    assert parts.get("typed") == (keys.LAYER_TYPES_VERSION if weakly_typed else None)
    assert release(toolchain, version).strongly_typed is not weakly_typed


def test_a_default_is_in_the_key_as_its_value() -> None:
    parts = dict(keys.engine(Build().engine_job(), ENVIRONMENT).parts)
    assert set(parts["settings"]) == SETTINGS_IN_EVERY_KEY  # type: ignore[arg-type]
    explicit = replace(MODEL.builder, optimization_level=BuilderSettings().optimization_level)
    assert engine_key(settings=explicit) == engine_key()


def test_a_pinned_version_and_the_same_installed_version_have_one_key() -> None:
    target = Build().engine_job().target
    assert engine_key(target=replace(target, version="1.4.0.76")) == engine_key(target=replace(target, version=None))


def test_the_sm_of_a_target_is_in_the_key_and_its_name_is_not() -> None:
    target = Build().engine_job().target
    assert engine_key(target=replace(target, name="gpu0")) == engine_key()
    assert engine_key(target=replace(target, sm=90)) != engine_key()


# -- trtbuild itself


@pytest.mark.parametrize("stage", keys.STEP_VERSIONS)
def test_a_new_step_version_changes_the_key_of_that_step_only(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe_of_each_stage()
    monkeypatch.setitem(keys.STEP_VERSIONS, stage, 99)
    after = recipe_of_each_stage()
    assert {name for name in before if before[name].key != after[name].key} == {stage}


def test_the_version_of_trtbuild_is_in_no_key() -> None:
    import tomllib

    version = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["version"]
    for recipe in Build().recipes().values():
        assert version not in str(recipe.to_json())


# -- machines without torch


def test_the_recipe_with_any_versions_leaves_out_the_versions_only() -> None:
    recipe = Build().trace()
    unversioned = with_any_versions(recipe)
    assert unversioned.parts == tuple(part for part in recipe.parts if part[0] != "versions")
    assert unversioned.key == with_any_versions(Build().trace(versions=None)).key
    assert unversioned.key != recipe.key


def test_a_trace_matches_a_recipe_without_versions_if_all_common_dependencies_are_equal() -> None:
    recipe, unversioned = Build().trace(), Build().trace(versions=None)
    assert matches_without_versions(recipe, unversioned)
    # a file that only one of the two recipes contains is not a difference
    assert matches_without_versions(replace(recipe, parts=(*recipe.parts, ("file:more.py", A))), unversioned)
    assert matches_without_versions(recipe, replace(unversioned, parts=(*unversioned.parts, ("file:more.py", A))))
    # two different states of one dependency are a difference, and so is a different or missing declared part
    assert not matches_without_versions(
        recipe, replace(unversioned, parts=(*unversioned.parts[:-1], ("distribution:timm", "9")))
    )
    assert not matches_without_versions(replace(recipe, parts=recipe.parts[1:]), unversioned)
    assert not matches_without_versions(
        Build(replace(MODEL, source=replace(MODEL.source, target="x:y"))).trace(), unversioned
    )
    assert not matches_without_versions(replace(recipe, version=recipe.version + 1), unversioned)
    assert not matches_without_versions(replace(recipe, stage="lower"), unversioned)


# -- invariance

_ROOT = Path(__file__).parents[3]


def _keys_in(cwd: Path, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, str(_ROOT / "tests" / "core" / "recipe_values.py")],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def test_keys_do_not_depend_on_hash_seed_place_locale_time_zone_or_user(tmp_path: Path) -> None:
    first = _keys_in(_ROOT, PYTHONHASHSEED="1", TZ="UTC", USER="ann", LC_ALL="C", HOME="/root", PYTHONUTF8="0")
    second = _keys_in(
        tmp_path,
        PYTHONHASHSEED="2",
        TZ="Asia/Kathmandu",
        USER="bob",
        LC_ALL="tr_TR.UTF-8",
        HOME="/nowhere",
        LOGNAME="bob",
    )
    assert first == second
    assert first.split() == [text for stage, recipe in recipe_of_each_stage().items() for text in (stage, recipe.key)]


def test_settings_of_different_types_that_compare_equal_are_encoded_differently() -> None:
    number, boolean = BuilderSettings(max_aux_streams=1), BuilderSettings(max_aux_streams=True)
    assert number == boolean
    assert encode(key_fields.settings_of(number)) == encode(key_fields.fields_of(number))
    assert (
        encode(key_fields.settings_of(boolean))
        == encode(key_fields.fields_of(boolean))
        != encode(key_fields.settings_of(number))
    )
