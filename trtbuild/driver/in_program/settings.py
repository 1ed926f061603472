"""The settings of precision, partitioning and the builder, which are checked by the rules of a manifest.

The program gives a setting by its name in a manifest, or by its name in Torch-TensorRT (`ALIASES`). Any other name is an
error with a suggestion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.precisions import Precision, Precisions, is_precision, module_precisions
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.arguments.inputs import DTYPE_ALIASES, dtype_name
from trtbuild.errors import UsageError

#: Torch-TensorRT's name of a builder setting → the manifest's name, and a function that converts the value.
ALIASES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "workspace_size": ("workspace", lambda size: size or None),  # 0 means the default
    "num_avg_timing_iters": ("avg_timing_iterations", lambda count: count),
    "disable_tf32": ("tf32", lambda disabled: not disabled),
    "make_refittable": ("refit", lambda enabled: enabled),
    "strip_engine_weights": ("strip_plan", lambda enabled: enabled),
    "enable_weight_streaming": ("weight_streaming", lambda enabled: enabled),
}

_CACHE_REASON = "engines are always kept, in cache_dir"

#: Settings of Torch-TensorRT that trtbuild does not need → the reason.
SUPERFLUOUS_SETTINGS: Mapping[str, str] = {
    "ir": "TorchDynamo always traces the modules of torch.compile",
    "debug": "the result's `report` lists what was built, and the errors of a failed build explain it",
    "use_python_runtime": "there is one runtime",
    "use_fast_partitioner": "there is one partitioner",
    "use_explicit_typing": "an engine computes in the types that the module has, or that `precision` gives it",
    "assume_dynamic_shape_support": "every operator is converted with dynamic shapes",
    "engine_cache_dir": _CACHE_REASON,
    "engine_cache_size": _CACHE_REASON,
    "cache_built_engines": _CACHE_REASON,
    "reuse_cached_engines": _CACHE_REASON,
    "timing_cache_path": "timings are kept in the user's cache directory, for releases that can reuse them",
    "immutable_weights": "the weights of an engine cannot be changed, unless make_refittable=True",
}

_BUILDER_NAMES = tuple(entry.name for entry in fields(BuilderSettings))


def precisions_of(precision: Any, enabled_precisions: Iterable[Any] | None) -> Precisions:
    """Return the precision of the module and of its submodules. Raises UsageError.

    `precision` is one precision, or a mapping as in a manifest: precision → patterns of module paths. In a
    mapping, the key ``"default"`` has the precision of all other modules. A precision is a name or a dtype of torch.
    """
    if not isinstance(precision, Mapping):
        return Precisions(_precision_of(precision, enabled_precisions))
    default: Any = None
    patterns_by_precision: dict[Precision, list[str]] = {}
    for key, value in precision.items():
        if key == "default":
            default = value
            continue
        name = _precision_name(key, "each key of precision, except default,")
        if not is_precision(name):  # for example "int64": a dtype, but not a precision
            raise checked.wrong_value("each key of precision", '"default", "float32", "float16" or "bfloat16"', key)
        patterns = [value] if isinstance(value, str) else checked.items(f"precision[{name!r}]", value, '["*.norm"]')
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise checked.wrong_value(f"precision[{name!r}]", "a list of module paths", value)
        patterns_by_precision.setdefault(name, []).extend(patterns)
    default_precision = _precision_of(default, enabled_precisions)
    if {name for name, patterns in patterns_by_precision.items() if patterns} == {default_precision}:
        other_precision = "torch.half" if default_precision == "float32" else "torch.float32"
        raise UsageError(
            f"precision lists modules under {default_precision} only, and {default_precision} is its default anyway",
            hint=f'give the precision of the other modules as default: precision={{"default": {other_precision}, …}}',
        )
    entries = module_precisions(patterns_by_precision)
    repeated = [pattern for pattern, count in Counter(entry.pattern for entry in entries).items() if count > 1]
    if repeated:
        raise UsageError(f"precision lists {repeated[0]!r} twice", hint="a module computes in one precision")
    return Precisions(default_precision, entries)


def _precision_of(precision: Any, enabled_precisions: Iterable[Any] | None) -> Precision:
    """Return the precision of the whole module. `enabled_precisions` may contain float32 and one other precision."""
    enabled_list = (
        () if enabled_precisions is None else checked.items("enabled_precisions", enabled_precisions, "{torch.half}")
    )
    reduced_precisions = {_precision_name(entry, "enabled_precisions") for entry in enabled_list} - {"float32"}
    requested_precision = _precision_name(precision, "precision") if precision is not None else None
    precisions = reduced_precisions | ({requested_precision} if requested_precision is not None else set())
    if not precisions:
        return "float32"
    if len(precisions) > 1 or not precisions <= {"float32", "float16", "bfloat16"}:
        raise UsageError(
            f"precision cannot be {' and '.join(sorted(precisions))}",
            hint='a model computes in one of "float32", "float16" and "bfloat16"',
        )
    return precisions.pop()  # type: ignore[return-value]


def partition_of(
    torch_executed_ops: Iterable[Any],
    min_block_size: int | None,
    require_full_compilation: bool,
    granularity: Any,
    truncate_double: bool = False,
    truncate_long_and_double: bool | None = None,
) -> PartitionSettings:
    """Return the settings of partitioning. Raises UsageError."""
    from trtbuild.manifest.format.fields import PartitionFields

    operators = checked.items("torch_executed_ops", torch_executed_ops, '["aten.relu"]')
    truncates = checked.flag("truncate_double", truncate_double)
    if truncate_long_and_double is not None:
        truncates_both = checked.flag("truncate_long_and_double", truncate_long_and_double)
        if truncates and not truncates_both:
            raise UsageError(
                "truncate_double=True and truncate_long_and_double=False contradict each other", hint="leave one out"
            )
        truncates = truncates_both
    arguments: dict[str, Any] = {
        "torch_executed_ops": [_operator_name(entry) for entry in operators],
        "require_full_compilation": require_full_compilation,
    }
    if truncates:
        arguments["truncate_double"] = True
    if min_block_size is not None:
        arguments["min_block_size"] = min_block_size
    if granularity is not None:
        is_text = isinstance(granularity, str)
        arguments["granularity"] = granularity if is_text else checked.items("granularity", granularity, '["layers.*"]')
    return _checked_settings(PartitionSettings(), PartitionFields, arguments)  # type: ignore[no-any-return]


def builder_of(arguments: Mapping[str, Any], other_names: Iterable[str] = ()) -> BuilderSettings:
    """Return TensorRT's builder settings. `arguments` maps names in a manifest or in Torch-TensorRT to values.

    The hint about an unknown name may suggest one of `other_names`. Raises UsageError, for example if the two names of a
    setting have different values.
    """
    from trtbuild.manifest.format.fields import BuilderFields

    settings: dict[str, Any] = {}
    argument_names: dict[str, str] = {}
    for argument, value in arguments.items():
        name = argument
        if argument in ALIASES:
            name, translate = ALIASES[argument]
            if argument == "disable_tf32":
                checked.flag(argument, value)  # its translation, `not`, would accept any value
            value = translate(value)
            if name == "workspace" and value is None:
                continue
        if name in SUPERFLUOUS_SETTINGS:
            raise UsageError(
                f"{name!r} is a setting of Torch-TensorRT only", hint=f"leave it out: {SUPERFLUOUS_SETTINGS[name]}"
            )
        if name not in _BUILDER_NAMES:
            hint = suggestion(name, [*other_names, *_BUILDER_NAMES, *ALIASES], "settings")
            raise UsageError(f"there is no setting {name!r}", hint=hint)
        if name == "optimization_level" and value is None:
            continue
        if name in settings and settings[name] != value:
            raise UsageError(
                f"{argument_names[name]} and {argument} are two names of one setting, and have different values",
                hint="leave one of the two out",
            )
        settings[name], argument_names[name] = value, argument
    return _checked_settings(BuilderSettings(), BuilderFields, settings, argument_names)  # type: ignore[no-any-return]


def _checked_settings(
    defaults: Any, fields_type: Any, arguments: Mapping[str, Any], argument_names: Mapping[str, str] | None = None
) -> Any:
    """Return `defaults` with the values of `arguments`. The pydantic class `fields_type` checks the values.

    `argument_names`: name in a manifest → name that the program used, if the two may differ.
    """
    from pydantic import ValidationError

    try:
        checked_fields = fields_type(**arguments)
    except ValidationError as error:
        raise _setting_error(error.errors(include_url=False)[0], fields_type, arguments, argument_names or {}) from None
    values = {name: getattr(checked_fields, name) for name in checked_fields.model_fields_set}
    return replace(
        defaults, **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def _setting_error(
    details: Any, fields_type: Any, arguments: Mapping[str, Any], argument_names: Mapping[str, str]
) -> UsageError:
    """Convert `details`, one of pydantic's errors, to a UsageError with the words of a manifest error."""
    from trtbuild.manifest.format.wording import ExpectedType, allowed_text

    expected: ExpectedType | None = ExpectedType(fields_type)
    name, is_entry = "a setting", False
    for key in details["loc"]:
        expected = expected.type_inside(key) if expected is not None else None
        name, is_entry = (name, True) if isinstance(key, int) else (str(key), False)
    argument = argument_names.get(name, name)
    context = details.get("ctx", {})
    if details["type"] == "trtbuild":
        return UsageError(f"{argument}: {context['text']}", hint=context["hint"])
    allowed_values = allowed_text(expected) if expected is not None else "another value"
    allowed_values = "True or False" if allowed_values == "true or false" else allowed_values
    subject = f"each entry of {argument}" if is_entry else argument
    value = details["input"] if is_entry or name not in arguments else arguments[name]
    return checked.wrong_value(subject, allowed_values, value)


def _precision_name(entry: Any, argument: str) -> str:
    try:
        return _dtype_name(entry)
    except UsageError:
        raise checked.wrong_value(argument, 'one of "float32", "float16" and "bfloat16"', entry) from None


def _dtype_name(entry: Any) -> str:
    """Return the manifest's name of a dtype. `entry` may be a member of Torch-TensorRT's enum, such as ``dtype.f16``."""
    name = str(getattr(entry, "name", entry)) if not isinstance(entry, str) else entry
    return dtype_name(DTYPE_ALIASES.get(name, entry))


def _operator_name(entry: Any) -> str:
    """Return, for example, ``aten.add.Tensor`` for ``torch.ops.aten.add.Tensor``."""
    return str(entry).removeprefix("torch.ops.").replace("::", ".")
