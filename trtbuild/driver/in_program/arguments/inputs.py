"""Convert the inputs of a module from Torch-TensorRT's form to the values of a manifest.

Rules
1. An input is an `Input` or a tensor. A tensor stands for an `Input` with its dtype and its static shape. `inputs` are
   passed by position, `kwarg_inputs` by name.
2. Several optimization profiles are several lists: ``inputs=[[…], […]]`` (and ``kwarg_inputs=[{…}, {…}]``). All profiles
   have the same inputs. Only the shapes differ.
3. A positional input has the name of its `Input`, otherwise the name of the module's argument, otherwise
   ``input_<number>``.
4. `dims` declares which axes are one dim, as in a manifest: ``{"batch": ["x.0", "mask.0"]}``, or
   ``{"height": {"at": […], "multiple_of": 32}}``. The `shared_dims` of an `Input` also name its axes: axes with the same
   name are one dim. `dynamic_shapes` has the format of torch.export (`export_dims`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from trtbuild.core.model import spec
from trtbuild.core.model.spec import NamedDim, Profile, ShapeRange
from trtbuild.core.values.value_ranges import InvalidRange, ValueRange, value_range
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.export_dims import apply_export_dims
from trtbuild.errors import UsageError

Shape = Sequence[int]


class Input:
    """One tensor input of a module: its shape or range of shapes, dtype and name. Raises UsageError.

    * `shape` is static. A dynamic input has `min_shape`, `opt_shape` and `max_shape`, of the same rank.
    * `dtype` is a dtype of torch or numpy, or a name (``"float16"``).
    * `name` is the input's name in the package. The default is the name of the module's argument, or
      ``input_<number>`` if it is not known.
    * `range` is the smallest and the largest value of random inputs, such as ``(0, 30521)`` for token ids.
    * `shared_dims` names axes (``{0: "batch"}``). Axes with the same name, in all inputs, are one dimension.
    * `format` exists for programs written for Torch-TensorRT. Only the contiguous format is accepted.
    """

    def __init__(
        self,
        shape: Shape | None = None,
        *,
        min_shape: Shape | None = None,
        opt_shape: Shape | None = None,
        max_shape: Shape | None = None,
        dtype: Any = "float32",
        name: str = "",
        format: Any = None,
        range: Sequence[float] | None = None,
        shared_dims: Mapping[int, str] | None = None,
    ) -> None:
        shapes = (min_shape, opt_shape, max_shape)
        if shape is not None and any(sizes is not None for sizes in shapes):
            raise UsageError(
                f"Input{_quoted_name(name)} has shape and a range of shapes",
                hint="give shape, or min_shape, opt_shape, max_shape",
            )
        if shape is not None:
            shapes = (shape, shape, shape)
        min_sizes, opt_sizes, max_sizes = shapes
        if min_sizes is None or opt_sizes is None or max_sizes is None:
            names = ("min_shape", "opt_shape", "max_shape")
            missing = [argument for argument, sizes in zip(names, shapes, strict=True) if sizes is None]
            raise UsageError(
                f"Input{_quoted_name(name)} lacks {' and '.join(missing)}",
                hint="give shape, or all of min_shape, opt_shape and max_shape",
            )
        if format is not None and "contiguous" not in str(format):
            raise UsageError(
                f"Input{_quoted_name(name)} has format {format}; engines take contiguous tensors",
                hint="leave format out; other layouts are copied when the module is called",
            )
        self.shapes = ShapeRange(
            _checked_sizes(min_sizes, name), _checked_sizes(opt_sizes, name), _checked_sizes(max_sizes, name)
        )
        self.dtype = dtype_name(dtype)
        self.range = None if range is None else _checked_range(self.dtype, range, name)
        self.name = name
        self.shared_dims = {} if shared_dims is None else _checked_shared_dims(shared_dims, len(self.shapes.opt), name)

    @classmethod
    def from_tensor(cls, tensor: Any, name: str = "") -> Input:
        """Return an input with the dtype and the static shape of `tensor`."""
        return cls(tuple(tensor.shape), dtype=tensor.dtype, name=name)

    def __repr__(self) -> str:
        sizes = self.shapes
        if sizes.min == sizes.max:
            shape = f"shape={sizes.min}"
        else:
            shape = f"min_shape={sizes.min}, opt_shape={sizes.opt}, max_shape={sizes.max}"
        values = f", range={self.range}" if self.range is not None else ""
        return f"Input({shape}, dtype={self.dtype!r}{values}" + (f", name={self.name!r})" if self.name else ")")


def describe_inputs(
    inputs: Any,
    kwarg_inputs: Any = None,
    *,
    arguments: Sequence[str] = (),
    dims: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ModuleInputs:
    """Return the inputs of a module. `arguments` are the names of the module's positional arguments. Raises UsageError."""
    by_position = [_named_inputs(profile, arguments) for profile in _positional_profiles(inputs)]
    by_name = [dict(profile) for profile in _keyword_profiles(kwarg_inputs)]
    count = max(len(by_position), len(by_name))
    if not {len(by_position), len(by_name)} <= {1, count}:
        raise UsageError(
            f"inputs have {len(by_position)} profiles and kwarg_inputs {len(by_name)}",
            hint="give both for each profile, or one of them for all profiles",
        )
    by_position = by_position * count if len(by_position) == 1 else by_position
    by_name = by_name * count if len(by_name) == 1 else by_name
    profiles = []
    for positional, keywords in zip(by_position, by_name, strict=True):
        entries = [(spec.Input(name, entry.dtype, range=entry.range), entry.shapes) for name, entry in positional]
        for name, value in keywords.items():
            entry = _as_input(value, f"kwarg_inputs[{name!r}]")
            entries.append((spec.Input(str(name), entry.dtype, True, entry.range), entry.shapes))
        profiles.append(entries)
    first_inputs = tuple(entry for entry, _ in profiles[0])
    _check_names(first_inputs)
    for number, entries in enumerate(profiles):
        if tuple(entry for entry, _ in entries) != first_inputs:
            raise UsageError(
                f"the inputs of profile {number} differ from those of profile 0: {[entry.name for entry, _ in entries]}",
                hint="all profiles have the same inputs, in one order, with the same dtypes and ranges; only shapes differ",
            )
    spec_profiles = tuple(
        Profile(str(number), tuple((entry.name, shape) for entry, shape in entries))
        for number, entries in enumerate(profiles)
    )
    all_dims = {} if dims is None else checked.mapping("dims", dims, '{"batch": ["x.0", "mask.0"]}')
    all_dims = _add_shared_dims(all_dims, by_position, by_name)
    module_inputs = ModuleInputs(first_inputs, spec_profiles, _named_dims(all_dims, first_inputs))
    return module_inputs if dynamic_shapes is None else apply_export_dims(module_inputs, dynamic_shapes)


def _add_shared_dims(
    dims: dict[str, Any], by_position: Sequence[Sequence[tuple[str, Input]]], by_name: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return `dims` and the `shared_dims` of the inputs of all profiles. Raises UsageError if both have the same name."""
    axes_by_dim: dict[str, list[str]] = {}
    for positional, keywords in zip(by_position, by_name, strict=True):
        for name, entry in (*positional, *keywords.items()):
            if not isinstance(entry, Input):  # a tensor
                continue
            for axis, dim in entry.shared_dims.items():
                axes = axes_by_dim.setdefault(dim, [])
                if f"{name}.{axis}" not in axes:  # an earlier profile may have added this axis
                    axes.append(f"{name}.{axis}")
    duplicates = sorted(dims.keys() & axes_by_dim.keys())
    if duplicates:
        raise UsageError(
            f"the dim {duplicates[0]!r} is in dims and in shared_dims", hint="name all its axes in one of the two"
        )
    return {**dims, **axes_by_dim}


def dtype_name(dtype: Any) -> str:
    """Return the name that a manifest uses for a dtype of torch or numpy, or for an alias: ``half`` → ``float16``.

    Raises UsageError.
    """
    text = dtype if isinstance(dtype, str) else str(getattr(dtype, "__name__", dtype))
    name = DTYPE_ALIASES.get(text.removeprefix("torch."), text.removeprefix("torch."))
    if name not in _DTYPES:
        raise UsageError(f"{dtype!r} is not a dtype of inputs", hint=f"the dtypes are: {', '.join(_DTYPES)}")
    return name


#: PyTorch's other names of dtypes, and those of TensorRT's tools → the manifest's name.
DTYPE_ALIASES = (
    {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}
    | {"f16": "float16", "fp16": "float16", "bf16": "bfloat16", "f32": "float32", "fp32": "float32"}
    | {"i8": "int8", "i32": "int32", "i64": "int64", "u8": "uint8"}
)

_DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def _quoted_name(name: str) -> str:
    return f" {name!r}" if name else ""


def _checked_sizes(shape: Shape, name: str) -> tuple[int, ...]:
    try:
        sizes = tuple(index(size) for size in shape)
    except TypeError:
        raise UsageError(
            f"{shape!r} is not a shape for Input{_quoted_name(name)}", hint="write a sequence of sizes"
        ) from None
    if any(size < 0 for size in sizes):
        raise UsageError(
            f"Input{_quoted_name(name)} has the shape {list(sizes)}: a size cannot be negative",
            hint="a dynamic size is a range: min_shape, opt_shape and max_shape",
        )
    return sizes


def _checked_shared_dims(shared_dims: Any, rank: int, name: str) -> dict[int, str]:
    is_valid = isinstance(shared_dims, Mapping) and all(
        isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis < rank and isinstance(dim, str) and dim
        for axis, dim in shared_dims.items()
    )
    if not is_valid:
        raise UsageError(
            f"shared_dims of Input{_quoted_name(name)} is {shared_dims!r:.60}",
            hint='write axis: name of a dim, such as {0: "batch"}',
        )
    return dict(shared_dims)


def _checked_range(dtype: str, limits: Any, name: str) -> ValueRange:
    try:
        low, high = limits
    except (TypeError, ValueError):
        raise UsageError(
            f"range of Input{_quoted_name(name)} is {limits!r:.40}",
            hint="write the smallest and the largest value: (0, 30521)",
        ) from None
    parsed = value_range(dtype, low, high)
    if isinstance(parsed, InvalidRange):
        raise UsageError(f"Input{_quoted_name(name)}: {parsed.text}", hint=parsed.hint)
    return parsed


def is_tensor(value: object) -> bool:
    """Whether `value` has a shape and a dtype, and is not an `Input`."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Input)


def _as_input(value: Any, place: str) -> Input:
    if isinstance(value, Input):
        return value
    if is_tensor(value):
        return Input.from_tensor(value)
    raise UsageError(
        f"{place} is {value!r:.40}, neither an Input nor a tensor",
        hint="leave it out, and pass the inputs after it in kwarg_inputs: the engine contains forward's default for it"
        if value is None
        else "write a shape as trtbuild.Input((1, 3, 224, 224)); other arguments must be fixed in the module",
    )


def _positional_profiles(inputs: Any) -> list[list[Any]]:
    if inputs is None:
        return [[]]
    if isinstance(inputs, Input) or is_tensor(inputs):
        return [[inputs]]
    entries = checked.items("inputs", inputs, "[trtbuild.Input((1, 3, 224, 224))]")
    if entries and all(isinstance(entry, list | tuple) for entry in entries):
        return [list(entry) for entry in entries]
    return [entries]


def _keyword_profiles(kwarg_inputs: Any) -> list[Mapping[str, Any]]:
    if kwarg_inputs is None:
        return [{}]
    profiles = kwarg_inputs if isinstance(kwarg_inputs, list | tuple) else [kwarg_inputs]
    return [checked.mapping("kwarg_inputs", entry, '{"mask": trtbuild.Input((8, 128))}') for entry in profiles]


def _named_inputs(inputs: Sequence[Any], arguments: Sequence[str]) -> list[tuple[str, Input]]:
    entries = []
    for number, value in enumerate(inputs):
        entry = _as_input(value, f"inputs[{number}]")
        entries.append((entry.name or (arguments[number] if number < len(arguments) else f"input_{number}"), entry))
    return entries


def _check_names(inputs: Sequence[spec.Input]) -> None:
    names = [entry.name for entry in inputs]
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not a valid name of an input", hint="a name is a Python identifier")
        if names.count(name) > 1:
            raise UsageError(f"two inputs are called {name!r}", hint="give each Input a different name")
    if not names:
        raise UsageError("there are no inputs", hint="inputs=[trtbuild.Input(shape=…)], or kwarg_inputs={…}")


def _named_dims(dims: Mapping[str, Any], inputs: Sequence[spec.Input]) -> tuple[NamedDim, ...]:
    order = {entry.name: number for number, entry in enumerate(inputs)}
    named_dims = []
    for name, value in dims.items():
        at = value.get("at") if isinstance(value, Mapping) else value
        factor = value.get("multiple_of", 1) if isinstance(value, Mapping) else 1
        has_known_fields = not isinstance(value, Mapping) or value.keys() <= {"at", "multiple_of"}
        if not at or not isinstance(at, str | list | tuple) or not has_known_fields:
            raise UsageError(
                f"dim {name!r} is {value!r}, which is not a list of axes",
                hint='write ["x.0", "mask.0"], or {"at": ["x.0"], "multiple_of": 32}',
            )
        checked.count(f"multiple_of of dim {name!r}", factor)
        axes = []
        for place in [at] if isinstance(at, str) else at:
            input_name, _, number = str(place).rpartition(".")
            if input_name not in order or not number.isdigit():
                raise UsageError(
                    f"dim {name!r} is at {place!r}, which is not an axis of an input",
                    hint=f"write <input>.<axis>; the inputs are: {', '.join(order)}",
                )
            axes.append((input_name, int(number)))
        named_dims.append(NamedDim(str(name), tuple(sorted(axes, key=lambda axis: (order[axis[0]], axis[1]))), factor))
    return tuple(sorted(named_dims, key=lambda dim: (order[dim.at[0][0]], dim.at[0][1], dim.name)))
