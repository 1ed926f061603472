"""The `dynamic_shapes` of torch.export: a ``Dim`` gives an axis a name and a range.

Rules
1. Axes with the same Dim belong to one dim. If `dims` or an `Input` gives other axes the name of the Dim, they belong to
   it, too. ``2 * half`` is a separate dim, whose sizes are multiples of 2.
2. The opt size is the size of the example, clamped to the Dim's range.
3. A Dim needs a max, because an engine is built for a range. The min size is at least 1, also for a Dim without a min:
   torch sets it to 0, and no engine has an empty dynamic axis.
4. A number is the size of a static axis. It must be the size of the example. ``Dim.STATIC`` is any such number.
5. ``Dim.DYNAMIC(min=…, max=…)`` and ``Dim.AUTO(min=…, max=…)`` give an axis a range without a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import NamedDim, Profile, ShapeRange
from trtbuild.core.values.expressions import UNBOUNDED
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.errors import UsageError

_EXAMPLE = 'write dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=32)}}'


def apply_export_dims(module_inputs: ModuleInputs, dynamic_shapes: Any) -> ModuleInputs:
    """Return the inputs with the ranges of the Dims in `dynamic_shapes`. Raises UsageError."""
    names = [entry.name for entry in module_inputs.inputs]
    axes_by_input = _by_input(dynamic_shapes, names)
    if len(module_inputs.profiles) > 1:
        raise UsageError("dynamic_shapes and several profiles contradict each other", hint="give one of the two")
    (profile,) = module_inputs.profiles
    shapes = dict(profile.shapes)
    axes_by_dim: dict[str, list[tuple[str, int]]] = {}
    dim_names: dict[tuple[str, int], str] = {}  # (name of a Dim, factor) → name of our dim
    factors: dict[str, int] = {}  # name of our dim → factor
    for name, axes in axes_by_input.items():
        for axis, dim in _declared_axes(axes, name):
            if not 0 <= axis < len(shapes[name].opt):
                raise UsageError(
                    f"dynamic_shapes has axis {axis} of {name!r}, which has {len(shapes[name].opt)} axes",
                    hint="axes are counted from 0",
                )
            if _is_static(dim):
                _check_static_size(dim, shapes[name], name, axis)
                continue
            if _is_hint(dim) and isinstance(dim.max, int) and dim.max < UNBOUNDED:
                shapes[name] = _with_range(shapes[name], axis, max(dim.min or 0, 1), dim.max)
                continue
            root, factor = _root_and_factor(dim, f"{name}.{axis}")
            if not isinstance(root.max, int) or root.max * factor >= UNBOUNDED:
                raise UsageError(
                    f"the Dim {root.__name__!r} of {name}.{axis} has no max",
                    hint="torch.export.Dim(name, min=…, max=…): an engine needs a range",
                )
            low, high = max(int(root.min), 1) * factor, root.max * factor
            shapes[name] = _with_range(shapes[name], axis, low, high)
            key = root.__name__, factor
            if key not in dim_names:
                dim_names[key] = _unused_name(root.__name__, factor, factors)
                factors[dim_names[key]] = factor
            axes_by_dim.setdefault(dim_names[key], []).append((name, axis))
    export_dims = [NamedDim(name, tuple(axes), factors[name]) for name, axes in axes_by_dim.items()]
    new_profile = Profile(profile.name, tuple((name, shapes[name]) for name, _ in profile.shapes))
    return replace(module_inputs, profiles=(new_profile,), dims=_merge_dims(module_inputs.dims, export_dims, names))


def static_axes(module_inputs: ModuleInputs, dynamic_shapes: Any) -> list[tuple[str, int]]:
    """Return (input, axis) for each axis that `dynamic_shapes` calls static (rule 4). Raises UsageError."""
    axes_by_input = _by_input(dynamic_shapes, [entry.name for entry in module_inputs.inputs])
    return [
        (name, axis)
        for name, axes in axes_by_input.items()
        for axis, dim in _declared_axes(axes, name)
        if _is_static(dim)
    ]


def _is_static(dim: Any) -> bool:
    """Whether `dim` is a number or ``Dim.STATIC``."""
    return isinstance(dim, int) or (_is_hint(dim) and dim.type.name == "STATIC")


def _is_hint(dim: Any) -> bool:
    """Whether `dim` is ``Dim.AUTO``, ``Dim.DYNAMIC`` or ``Dim.STATIC``, perhaps with a range. They have no names."""
    return hasattr(getattr(dim, "type", None), "name") and not hasattr(dim, "__name__")


def _by_input(dynamic_shapes: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return input name → entry of `dynamic_shapes`. `names` are the inputs in order. Raises UsageError."""
    if not isinstance(dynamic_shapes, Mapping | list | tuple):
        raise checked.wrong_value("dynamic_shapes", "a mapping by input, or a list", dynamic_shapes, _EXAMPLE)
    if not isinstance(dynamic_shapes, Mapping) and len(dynamic_shapes) > len(names):
        raise UsageError(
            f"dynamic_shapes has {len(dynamic_shapes)} entries, and the model has {len(names)} inputs",
            hint=f"the inputs are: {', '.join(names)}",
        )
    axes_by_input: Mapping[str, Any] = (
        dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(names, dynamic_shapes, strict=False))
    )
    unknown = [name for name in axes_by_input if name not in names]
    if unknown:
        raise UsageError(
            f"dynamic_shapes has {unknown[0]!r}, which is not an input", hint=f"the inputs are: {', '.join(names)}"
        )
    return axes_by_input


def _check_static_size(size: Any, shape: ShapeRange, name: str, axis: int) -> None:
    """Raise UsageError if an axis is not static, or if its size is not the number `size` (rule 4)."""
    low, high = shape.min[axis], shape.max[axis]
    if low != high or (isinstance(size, int) and size != low):
        sizes_text = f"has size {low}" if low == high else f"has sizes from {low} to {high}"
        declared = f"the number {size!r}" if isinstance(size, int) else "Dim.STATIC"
        raise UsageError(
            f"dynamic_shapes has {declared} for {name}.{axis}, which {sizes_text} in inputs",
            hint="a number is the size of a static axis; for a range of sizes write torch.export.Dim(name, min=…, max=…)",
        )


def _merge_dims(
    declared_dims: Sequence[NamedDim], export_dims: Sequence[NamedDim], input_names: Sequence[str]
) -> tuple[NamedDim, ...]:
    """Return all dims, sorted by first axis. Dims with the same name become one dim.

    Raises UsageError if their factors differ.
    """
    order = {name: number for number, name in enumerate(input_names)}
    merged = {dim.name: dim for dim in declared_dims}
    for dim in export_dims:
        declared = merged.get(dim.name)
        if declared is None:
            merged[dim.name] = dim
            continue
        if declared.multiple_of != dim.multiple_of:
            raise UsageError(
                f"the sizes of the dim {dim.name!r} are multiples of {dim.multiple_of} in dynamic_shapes, "
                f"but of {declared.multiple_of} in dims or in an Input",
                hint="give the two dims different names, or leave one of them out",
            )
        at = sorted({*declared.at, *dim.at}, key=lambda place: (order[place[0]], place[1]))
        merged[dim.name] = replace(declared, at=tuple(at))
    return tuple(sorted(merged.values(), key=lambda dim: (order[dim.at[0][0]], dim.at[0][1], dim.name)))


def _unused_name(root: str, factor: int, used_names: Collection[str]) -> str:
    """Return `root`, or ``<root>_<factor>`` if another dim is named `root`. Underscores follow if this is used, too."""
    name = root if root not in used_names else f"{root}_{factor}"
    while name in used_names:
        name += "_"
    return name


def _declared_axes(axes: Any, name: str) -> list[tuple[int, Any]]:
    """Return (axis, Dim or number) for each axis to which `axes` gives a Dim or a number. Raises UsageError."""
    if axes is None:
        return []
    if not isinstance(axes, Mapping | list | tuple):
        raise checked.wrong_value(f"dynamic_shapes[{name!r}]", "a mapping by axis, or a list", axes, _EXAMPLE)
    pairs = list(axes.items() if isinstance(axes, Mapping) else enumerate(axes))
    for axis, _ in pairs:
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise UsageError(f"dynamic_shapes has axis {axis!r} of {name!r}, which is not a number", hint=_EXAMPLE)
    return [(axis, dim) for axis, dim in pairs if dim is not None]


def _root_and_factor(dim: Any, place: str) -> tuple[Any, int]:
    """Return a Dim and its factor: ``2 * batch`` gives (batch, 2). Errors name the axis `place`.

    torch.export stores ``2 * batch`` as the Dim `root`, and the function `fn`, which computes the size of the axis from the
    size of `root`.
    """
    root = getattr(dim, "root", None)
    if root is not None:
        factor = int(dim.fn(1)) - int(dim.fn(0))
        if int(dim.fn(0)) or factor < 1:
            raise UsageError(
                f"{place} is {dim.__name__}, which is not a multiple of a Dim", hint="write k * dim, or a Dim"
            )
        return root, factor
    if not hasattr(dim, "__name__") or not hasattr(dim, "max"):  # Dim.AUTO and Dim.DYNAMIC have no names
        raise UsageError(
            f"{place} is {dim}, which has no range",
            hint="torch.export.Dim(name, min=…, max=…): an engine needs a range",
        )
    return dim, 1


def _with_range(shape: ShapeRange, axis: int, low: int, high: int) -> ShapeRange:
    opt = min(max(shape.opt[axis], low), high)

    def with_size(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
        return (*sizes[:axis], size, *sizes[axis + 1 :])

    return ShapeRange(with_size(shape.min, low), with_size(shape.opt, opt), with_size(shape.max, high))
