"""Read a model's inputs, profiles and dims, and check that they agree, with the rules of `core.model.declared_shapes`.

In the field ``at`` of a dim, ``image.0`` names an axis: the first axis of the input ``image``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.core.model.declared_shapes import ShapeProblem, derive
from trtbuild.core.model.spec import Input, NamedDim, Origin, Profile, ShapeRange
from trtbuild.core.values.nearest import suggestion
from trtbuild.core.values.value_ranges import InvalidRange, ValueRange, value_range
from trtbuild.manifest.declared import LocatedValue, NamedEntry
from trtbuild.manifest.format.input_fields import DimFields, InputFields, ShapeFields
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node

ProfileEntry = NamedEntry[dict[str, ShapeFields]]


@dataclass(frozen=True)
class Shapes:
    """A model's inputs, dims and profiles. The dims, and the shapes in a profile, have the order of the inputs."""

    inputs: tuple[Input, ...]
    dims: tuple[NamedDim, ...]
    profiles: tuple[Profile, ...]


def resolve_inputs(located: LocatedValue, problems: Problems) -> tuple[Input, ...]:
    """The inputs in their order in the manifest. ``image:`` without fields is an input with all defaults."""
    declared: dict[str, InputFields | None] = located.value
    return tuple(
        Input(name, fields.dtype, fields.keyword, _value_range(fields, located.node.items[name], problems))
        if fields
        else Input(name)
        for name, fields in declared.items()
    )


def _value_range(fields: InputFields, node: Node, problems: Problems) -> ValueRange | None:
    """The range of an input's values, or None. Adds a problem if the range does not fit the input's type."""
    if fields.range is None:
        return None
    result = value_range(fields.dtype, *fields.range)
    if not isinstance(result, InvalidRange):
        return result
    problems.add(node.items["range"].origin, result.text, result.hint)
    return None


def resolve_dims(located: LocatedValue | None, inputs: tuple[Input, ...], problems: Problems) -> tuple[NamedDim, ...]:
    """The dims with their axes, in the order of the inputs' axes."""
    declared: dict[str, DimFields] = (located.value if located else None) or {}
    order = {entry.name: index for index, entry in enumerate(inputs)}
    dim_of_axis: dict[tuple[str, int], str] = {}
    dims = []
    for name, fields in declared.items():
        node = located.node.items[name] if located else None
        axes: list[tuple[str, int]] = []
        for index, axis_text in enumerate(fields.at):
            input_name, _, number = axis_text.partition(".")
            axis = (input_name, int(number))
            text = hint = ""
            if input_name not in order:
                text = f"there is no input {input_name!r} for dim {name!r}"
                hint = suggestion(input_name, order, "inputs")
            elif axis in dim_of_axis:
                text = f"{axis_text} is already in dim {dim_of_axis[axis]!r}"
                hint = "list each axis once, in one dim"
            if text and node:
                problems.add(axis_node(node, index).origin, text, hint)
            else:
                dim_of_axis[axis] = name
                axes.append(axis)
        if axes:
            axes.sort(key=lambda axis: (order[axis[0]], axis[1]))
            dims.append(NamedDim(name, tuple(axes), fields.multiple_of))
    return tuple(sorted(dims, key=lambda dim: (order[dim.at[0][0]], dim.at[0][1], dim.name)))


def axis_node(node: Node, index: int) -> Node:
    """The node of axis number `index` of a dim, in any of the forms ``{at: [a.0]}``, ``[a.0]`` and ``a.0``."""
    axes = node.items.get("at", node)
    return axes.elements[index] if axes.elements else axes


def resolve_profile(
    entry: ProfileEntry, model: str, use_origin: Origin, inputs: tuple[Input, ...], problems: Problems
) -> Profile | None:
    """A profile with the shapes of a model's inputs, in their order. None if the profile is invalid.

    Adds a problem for each input that is only in the profile or only in the model. The result does not have such inputs.
    `use_origin` is the place where the model names the profile.
    """
    if entry.fields is None:
        return None
    names = [declared.name for declared in inputs]
    for name in entry.fields:
        if name not in names:
            problems.add(
                entry.node.keys[name],
                f"profile {entry.name!r} has a shape for {name!r}, which is not an input of model {model!r}",
                suggestion(name, names, "inputs"),
            )
    for name in names:
        if name not in entry.fields:
            problems.add(
                use_origin,
                f"profile {entry.name!r} has no shape for input {name!r} of model {model!r}",
                f"add `{name}: {{min: …, opt: …, max: …}}` at {entry.name_origin.file}:{entry.name_origin.line}",
            )
    return Profile(entry.name, tuple((name, shape_range(entry.fields[name])) for name in names if name in entry.fields))


def shape_range(fields: ShapeFields) -> ShapeRange:
    """The min, opt and max shape. All three are equal to ``shape`` if the profile has that field."""
    min_shape, opt_shape, max_shape = (tuple(shape or ()) for shape in (fields.min, fields.opt, fields.max))
    if fields.shape is not None:
        min_shape = opt_shape = max_shape = tuple(fields.shape)
    return ShapeRange(min_shape, opt_shape, max_shape)


def check_profile(entry: ProfileEntry, problems: Problems) -> None:
    """Add the problems of a profile that do not depend on a model."""
    if not entry.fields:
        return
    profile = Profile(entry.name, tuple((name, shape_range(fields)) for name, fields in entry.fields.items()))
    _, shape_problems = derive([Input(name) for name in entry.fields], (), [profile])
    for problem in shape_problems:
        add_shape_problem(problem, {entry.name: entry}, None, problems)


def check_shapes(
    inputs: tuple[Input, ...],
    dims: tuple[NamedDim, ...],
    profiles: Sequence[Profile],
    entries: dict[str, ProfileEntry],
    dims_node: Node | None,
    problems: Problems,
) -> None:
    """Add a problem for each contradiction between a model's dims and profiles.

    An input that is missing in a profile has a problem already, so it is left out here.
    """
    common = [entry.name for entry in inputs if all(entry.name in dict(profile.shapes) for profile in profiles)]
    dims = tuple(
        NamedDim(dim.name, axes, dim.multiple_of)
        for dim in dims
        if (axes := tuple(axis for axis in dim.at if axis[0] in common))
    )
    profiles = [
        Profile(profile.name, tuple((name, shape) for name, shape in profile.shapes if name in common))
        for profile in profiles
    ]
    _, shape_problems = derive([entry for entry in inputs if entry.name in common], dims, profiles)
    for problem in shape_problems:
        add_shape_problem(problem, entries, dims_node, problems)


def add_shape_problem(
    problem: ShapeProblem, entries: dict[str, ProfileEntry], dims_node: Node | None, problems: Problems
) -> None:
    origin = _shape_origin(problem, entries, dims_node)
    problems.add(origin, problem.text, problem.hint)


def _shape_origin(problem: ShapeProblem, entries: dict[str, ProfileEntry], dims_node: Node | None) -> Origin:
    """The place in the manifest that causes a problem.

    For a problem of a dim, this is the axis in ``at``, or the name of the dim. For a problem of a profile, it is the size
    of the axis, or the whole shape.
    """
    if problem.dim is not None and dims_node is not None:
        node = dims_node.items[problem.dim]
        count = max(1, len(node.items.get("at", node).elements))
        axes = [axis_node(node, index) for index in range(count)]
        return next((axis.origin for axis in axes if axis.data == problem.axis_name), dims_node.keys[problem.dim])
    node = entries[problem.profile or ""].node.items[problem.input or ""]
    node = node.items.get(problem.shape_kind or "") or node.items.get("shape") or node
    if problem.axis is not None and problem.axis < len(node.elements):
        node = node.elements[problem.axis]
    return node.origin
