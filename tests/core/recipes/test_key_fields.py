"""For every field of models, settings and engine jobs: the keys that it changes, or the reason why it changes none."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any

import pytest

import trtbuild.core
from tests.core.builder_values import other_value
from tests.core.recipe_values import MODEL, PLUGINS, QUANTIZATION, WEIGHTS, A, Build, shapes_of
from trtbuild.core.engines import engine_job
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model import plugins, quantization, shapes, spec
from trtbuild.core.model.builder_settings import SETTINGS, SETTINGS_IN_EVERY_KEY, BuilderSettings
from trtbuild.core.model.plugins import Plugin, Plugins
from trtbuild.core.model.precisions import ModulePrecision
from trtbuild.core.model.quantization import Calibration, Quantization
from trtbuild.core.model.shapes import Symbol
from trtbuild.core.model.spec import Input, Model, NamedDim, PartitionSettings, Profile, ShapeRange, Source, Target
from trtbuild.core.recipes import key_fields

CALIBRATE, TRACE, LOWER, PARTITION, CONVERT, ENGINE, PACKAGE = (
    "calibrate",
    "trace",
    "lower",
    "partition",
    "convert",
    "engine",
    "package",
)

#: Type → field → the stages whose keys change if only that field changes and the results of earlier steps do not.
#: `test_every_field_is_accounted_for` fails for a new field until it has an entry here.
CHANGED_KEYS: Mapping[type, Mapping[str, Set[str]]] = {
    Model: {
        "name": {PACKAGE},
        "source": {TRACE},
        "inputs": {TRACE, PACKAGE},
        "profiles": {TRACE, ENGINE, PACKAGE},
        "targets": {ENGINE, PACKAGE},
        "origin": set(),
        "dims": {TRACE, PACKAGE},
        "weights": set(),
        "precision": {LOWER, PACKAGE},
        "module_precisions": {LOWER, PACKAGE},
        "reference": {PACKAGE},
        "partition": {PARTITION},
        "quantization": {CALIBRATE},
        "state": {TRACE},
        "plugins": {PARTITION, CONVERT, PACKAGE},  # the library of the changed model is the same
        "builder": {ENGINE},
        "outputs": set(),
        "places": set(),
    },
    Quantization: dict.fromkeys(("format", "method", "calibration", "exclude"), frozenset({CALIBRATE})),
    Calibration: dict.fromkeys(("python", "safetensors", "kwargs", "samples"), frozenset({CALIBRATE})),
    Plugins: {"operators": {PARTITION, CONVERT, PACKAGE}, "library": {PACKAGE}},  # the index has the library's name
    Plugin: {
        "operator": {PARTITION, CONVERT, PACKAGE},  # the package has the partitions, which name the operator
        "name": {PARTITION, CONVERT, PACKAGE},
        "version": {PARTITION, CONVERT, PACKAGE},
        "namespace": {PARTITION, CONVERT, PACKAGE},
        "arguments": {PARTITION, CONVERT},
        "attributes": {PARTITION, CONVERT},
    },
    Source: dict.fromkeys(("kind", "target", "kwargs", "deps", "env", "cacheable", "roots"), frozenset({TRACE})),
    Input: {"name": {TRACE, PACKAGE}, "dtype": {TRACE}, "keyword": {TRACE, PACKAGE}, "range": {TRACE, PACKAGE}},
    NamedDim: {"name": {PACKAGE}, "at": {TRACE, PACKAGE}, "multiple_of": {TRACE, ENGINE, PACKAGE}},
    ShapeRange: {"min": {TRACE, ENGINE, PACKAGE}, "opt": {ENGINE, PACKAGE}, "max": {TRACE, ENGINE, PACKAGE}},
    Profile: {"name": {PACKAGE}, "shapes": {TRACE, ENGINE, PACKAGE}},
    PartitionSettings: {
        **dict.fromkeys(
            ("granularity", "min_block_size", "torch_executed_ops", "require_full_compilation"), frozenset({PARTITION})
        ),
        "truncate_double": {LOWER, PARTITION, PACKAGE},
    },
    BuilderSettings: {
        **{field.name: {ENGINE} for field in dataclasses.fields(BuilderSettings)},
        "version_compatible": {ENGINE, PACKAGE},  # the loader reads it from the package
        "exclude_lean_runtime": {ENGINE, PACKAGE},  # the loader reads it from the package
    },
    Target: {
        "name": {PACKAGE},
        "sm": {ENGINE, PACKAGE},
        "toolchain": {PARTITION, ENGINE, PACKAGE},
        "version": set(),  # the resolved version is EngineJob.toolchain_version
        "compatibility": {ENGINE, PACKAGE},
        "platform": {ENGINE, PACKAGE},
    },
    Weight: dict.fromkeys(("dtype", "shape", "sha256"), frozenset({ENGINE, PACKAGE})),
    EngineJob: {
        **dict.fromkeys(
            ("onnx", "weights", "profiles", "settings", "target", "toolchain_version", "plugin_library"),
            frozenset({ENGINE}),
        ),
        "inputs": set(),  # inputs and outputs are only compared with the compiled network
        "outputs": set(),
    },
    ModulePrecision: {
        "pattern": {LOWER},  # later steps run only if the pattern changes the graph
        "precision": {LOWER, PACKAGE},
    },
    Symbol: {
        "name": {PACKAGE},
        "min": {TRACE, PACKAGE},
        "max": {TRACE, PACKAGE},
        "example": {TRACE},
        "multiple_of": {TRACE, ENGINE, PACKAGE},
    },
}

#: Types whose fields `CHANGED_KEYS` does not list, and why.
OUTSIDE = {
    spec.Precisions: "two fields of a model, which are in the key of lower",
    spec.Project: "a list of models, and of the files they were read from",
    spec.Origin: "the place of a value in a manifest",
    shapes.ShapePlan: "symbols and axes: each dim and each input's shape is in the trace",
    shapes.SymbolAxis: "the number of a symbol: in the trace, in each input's shape",
    quantization.Format: "a constant of the code: the format's name is in the key of the calibration",
    spec.GraphKind: "a constant of the code, which follows from the source's kind",
}

#: A model that stays valid if any size of a profile changes by one, because its inputs do not share a dim.
FLEXIBLE = replace(
    MODEL,
    dims=(NamedDim("batch", (("image", 0),)),),
    profiles=(
        Profile("batch", (("image", ShapeRange((2, 3), (4, 3), (8, 3))), ("mask", ShapeRange((2,), (4,), (8,))))),
    ),
)


def changed_value(value: Any) -> Any:
    """Return another value than `value`, with the same type unless `value` is None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        field = next(
            f.name for f in dataclasses.fields(value) if (type(value).__name__, f.name) not in key_fields.EXCLUDED
        )
        return replace(value, **{field: changed_value(getattr(value, field))})
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value is None:
        return 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Mapping):
        return {**value, "another": 1}
    if value and not isinstance(value[0], str):
        return (changed_value(value[0]), *value[1:])
    return (*value, "another")


def renamed(model: Model, old: str, new: str) -> Model:
    """Return `model` with the input `old` renamed to `new`, in every field of the model."""

    def rename(pairs: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        return tuple((new if name == old else name, value) for name, value in pairs)

    return replace(
        model,
        inputs=tuple(replace(entry, name=new) if entry.name == old else entry for entry in model.inputs),
        profiles=tuple(replace(profile, shapes=rename(profile.shapes)) for profile in model.profiles),
        dims=tuple(replace(dim, at=rename(dim.at)) for dim in model.dims),
    )


def with_range(model: Model, field: str) -> Model:
    """Return `model` with another min, opt or max (`field`) of the first input's first axis, in the last profile."""
    *others, last = model.profiles
    (name, shape), *rest = last.shapes
    changed = replace(shape, **{field: changed_value(getattr(shape, field))})
    return replace(model, profiles=(*others, replace(last, shapes=((name, changed), *rest))))


def with_other_mask(model: Model) -> Model:
    """Return `model` with a larger max of the input ``mask`` in every profile."""

    def changed(name: str, shape: ShapeRange) -> tuple[str, ShapeRange]:
        return name, replace(shape, max=changed_value(shape.max)) if name == "mask" else shape

    profiles = [
        replace(profile, shapes=tuple(changed(*entry) for entry in profile.shapes)) for profile in model.profiles
    ]
    return replace(model, profiles=tuple(profiles))


def with_other_quantization(kind: type, field: str) -> Quantization:
    """Return a changed copy of `QUANTIZATION`. If `kind` is Quantization or Calibration, `field` differs."""
    if kind is Calibration:
        return replace(QUANTIZATION, calibration=with_other_field(QUANTIZATION.calibration, field))
    return with_other_field(QUANTIZATION, field) if kind is Quantization else changed_value(QUANTIZATION)


def with_other_plugins(kind: type, field: str) -> Plugins:
    """Return a changed copy of `PLUGINS`: another library, or another value of one field of the plugin."""
    if kind is Plugins and field == "library":
        return with_other_field(PLUGINS, field)
    return replace(PLUGINS, operators=(with_other_field(PLUGINS.operators[0], field if kind is Plugin else "name"),))


def with_other_field(value: Any, field: str) -> Any:
    return replace(value, **{field: changed_value(getattr(value, field))})


def mutations(kind: type, field: str) -> tuple[Build, Build]:
    """Return two builds that differ in the field `field` of a value of the type `kind`.

    Other values differ only if they must agree with this field."""
    before = Build(replace(MODEL, dims=()))
    model = before.model

    def changed(value: Any) -> Any:
        return with_other_field(value, field)

    if kind in (Quantization, Calibration) or (kind, field) == (Model, "quantization"):
        quantized = replace(MODEL, quantization=QUANTIZATION)
        return Build(quantized), Build(replace(quantized, quantization=with_other_quantization(kind, field)))
    if kind in (Plugins, Plugin) or (kind, field) == (Model, "plugins"):
        with_plugins = replace(MODEL, plugins=PLUGINS)
        return Build(with_plugins), Build(replace(with_plugins, plugins=with_other_plugins(kind, field)))
    if kind is EngineJob:
        return before, replace(before, job=changed(before.engine_job()))
    if kind is Weight:
        return before, replace(before, weights=(changed(WEIGHTS[0]), *WEIGHTS[1:]))
    if kind is Symbol:
        before = Build(FLEXIBLE, shapes=shapes_of(FLEXIBLE))
        assert before.shapes is not None
        first, *rest = before.shapes.symbols
        return before, replace(before, shapes=replace(before.shapes, symbols=(changed(first), *rest)))
    if kind is ShapeRange:
        # No two dims of this model have the same range, because otherwise the trace would depend on opt, too.
        unequal = with_other_mask(model)
        return Build(unequal), Build(with_range(unequal, field))
    if kind is ModulePrecision:
        entry = ModulePrecision("head", "float16")
        other = replace(entry, pattern="*.norm") if field == "pattern" else replace(entry, precision="bfloat16")
        return Build(replace(model, module_precisions=(entry,))), Build(replace(model, module_precisions=(other,)))
    if kind is NamedDim:
        dim = FLEXIBLE.dims[0]
        changed_dim = replace(dim, at=(*dim.at, ("mask", 0))) if field == "at" else changed(dim)
        return Build(FLEXIBLE), Build(replace(FLEXIBLE, dims=(changed_dim,)))
    after: dict[type, Callable[[], Model]] = {
        Source: lambda: replace(model, source=changed(model.source)),
        Input: lambda: replace(model, inputs=(changed(model.inputs[0]), *model.inputs[1:])),
        Profile: lambda: replace(model, profiles=(changed(model.profiles[0]), *model.profiles[1:])),
        PartitionSettings: lambda: replace(model, partition=changed(model.partition)),
        BuilderSettings: lambda: replace(model, builder=changed(model.builder)),
        Target: lambda: replace(model, targets=(changed(model.targets[0]), *model.targets[1:])),
        Model: lambda: changed(model),
    }
    special: dict[tuple[type, str], Callable[[], Model]] = {
        (Input, "name"): lambda: renamed(model, "image", "picture"),
        (Input, "range"): lambda: replace(
            model, inputs=(replace(model.inputs[0], range=(0.0, 1.0)), *model.inputs[1:])
        ),
        (Model, "inputs"): lambda: renamed(model, "image", "picture"),
        (Profile, "shapes"): lambda: with_range(model, "max"),
        (Model, "profiles"): lambda: with_range(model, "max"),
        (Model, "module_precisions"): lambda: replace(model, module_precisions=(ModulePrecision("head", "bfloat16"),)),
        (Model, "dims"): lambda: replace(model, dims=MODEL.dims),
    }
    return before, replace(before, model=special.get((kind, field), after[kind])())


def changed_stages(before: Build, after: Build) -> set[str]:
    recipes, changed_recipes = before.recipes(), after.recipes()
    return {stage for stage in recipes if recipes[stage].key != changed_recipes[stage].key}


def types_of_settings() -> list[type]:
    values = [value for module in (spec, plugins, quantization, engine_job, shapes) for value in vars(module).values()]
    return list(dict.fromkeys(t for t in values if isinstance(t, type) and dataclasses.is_dataclass(t)))


@pytest.mark.parametrize("kind", types_of_settings(), ids=lambda kind: kind.__name__)
def test_every_field_is_accounted_for(kind: type) -> None:
    if kind in OUTSIDE:
        assert kind not in CHANGED_KEYS
        return
    assert set(CHANGED_KEYS[kind]) == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind, fields in CHANGED_KEYS.items() for field in fields],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_field_changes_the_keys_that_it_is_in_and_no_other(kind: type, field: str) -> None:
    before, after = mutations(kind, field)
    assert before != after or field == "places"  # models are equal if only `places` differs
    assert changed_stages(before, after) == CHANGED_KEYS[kind][field]


def test_the_trace_depends_on_whether_dims_with_equal_ranges_have_equal_opts() -> None:
    model = replace(MODEL, dims=())
    assert "trace" in changed_stages(Build(model), Build(with_range(model, "opt")))


def test_every_field_is_in_a_key_or_excluded() -> None:
    """Each field is in the key of a step, or is excluded with a reason that is true."""
    for kind, fields in CHANGED_KEYS.items():
        for field, stages in fields.items():
            reason = key_fields.EXCLUDED.get((kind.__name__, field))
            if reason is None:
                assert stages, f"{kind.__name__}.{field} is in no key and not excluded"
            elif reason.startswith(("the place", "the path")):
                assert not stages, f"{kind.__name__}.{field} is excluded, and in the key of {stages}"
            elif reason.startswith("a label"):
                assert stages == {PACKAGE}
            else:
                assert reason.startswith("in another form: ")


def test_every_excluded_field_exists_and_has_a_reason() -> None:
    fields = {(kind.__name__, field.name) for kind in types_of_settings() for field in dataclasses.fields(kind)}
    assert set(key_fields.EXCLUDED) <= fields
    assert all(len(reason) > 10 for reason in key_fields.EXCLUDED.values())


def test_every_excluded_type_has_a_unique_name() -> None:
    """`EXCLUDED` contains names of types. Two types of the same name in `trtbuild.core` would share entries."""
    modules = [
        importlib.import_module(info.name) for info in pkgutil.walk_packages(trtbuild.core.__path__, "trtbuild.core.")
    ]
    names = Counter(
        value.__name__
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    )
    assert [name for name, _ in key_fields.EXCLUDED if names[name] != 1] == []


@dataclasses.dataclass(frozen=True)
class Newer(BuilderSettings):
    fresh_flag: bool = False


def test_a_new_field_is_in_the_key_by_default() -> None:
    assert key_fields.fields_of(Newer()).keys() - key_fields.fields_of(BuilderSettings()).keys() == {"fresh_flag"}


def test_a_setting_that_was_added_later_is_in_the_key_only_if_it_is_not_at_its_default() -> None:
    assert key_fields.fields_of(BuilderSettings()).keys() == SETTINGS_IN_EVERY_KEY
    for name in SETTINGS:
        value = other_value(name)
        fields = key_fields.fields_of(replace(BuilderSettings(), **{name: value}))
        assert fields.keys() == {*SETTINGS_IN_EVERY_KEY, name}
        assert fields[name] == (list(value) if isinstance(value, tuple) else value)


def test_the_default_of_a_field_that_keys_omit_at_its_default_is_none_or_false() -> None:
    for owner, name in key_fields.OMITTED_AT_DEFAULT:
        (field,) = (field for field in dataclasses.fields(getattr(spec, owner)) if field.name == name)
        assert field.default is None or field.default is False


def test_truncate_double_is_in_the_key_only_if_it_is_set() -> None:
    assert "truncate_double" not in key_fields.fields_of(spec.PartitionSettings())
    assert key_fields.fields_of(spec.PartitionSettings(truncate_double=True))["truncate_double"] is True


def test_an_argument_of_the_model_that_has_no_encoding_is_refused() -> None:
    with pytest.raises(TypeError):
        _ = Build(replace(MODEL, source=replace(MODEL.source, kwargs={"x": {1: 2}}))).trace().key  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        _ = Build(replace(MODEL, source=replace(MODEL.source, kwargs={"x": object()}))).trace().key  # type: ignore[dict-item]


def test_the_bytes_of_a_library_are_in_the_keys_of_the_engine_and_the_package_only() -> None:
    model = replace(MODEL, plugins=PLUGINS)
    assert changed_stages(Build(model), Build(model, library=A)) == {ENGINE, PACKAGE}
    assert "plugin library" not in dict(Build().recipes()[ENGINE].parts)


def test_the_order_of_mappings_in_arguments_is_in_the_key_only_if_they_are_not_sorted() -> None:
    """Code may build its layers in the order of a mapping. If the mapping is sorted, the key has no part for the order."""
    first, second = ({"heads": {"wh": 2, "reg": 2}}, {"heads": {"reg": 2, "wh": 2}})
    models = [replace(MODEL, source=replace(MODEL.source, kwargs=kwargs)) for kwargs in (first, second)]
    assert changed_stages(*map(Build, models)) == {TRACE}
    assert "argument order" not in dict(Build(models[1]).trace().parts)
    assert QUANTIZATION.calibration is not None
    calibrations = [replace(QUANTIZATION.calibration, kwargs=kwargs) for kwargs in (first, second)]
    quantized = [replace(MODEL, quantization=replace(QUANTIZATION, calibration=data)) for data in calibrations]
    assert changed_stages(*map(Build, quantized)) == {CALIBRATE}
    assert Quantization.from_json(quantized[0].quantization.to_json()).to_json() != quantized[1].quantization.to_json()
