"""A model's inputs, profiles and dims, and the check that they agree. The rules are in `core.model.declared_shapes`."""

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
    """A model's inputs, dims and profiles. The dims, and the shapes of each profile, are in the order of the inputs."""

    inputs: tuple[Input, ...]
    dims: tuple[NamedDim, ...]
    profiles: tuple[Profile, ...]


def resolve_inputs(located: LocatedValue, problems: Problems) -> tuple[Input, ...]:
    """The inputs in the order in which they are declared. `image:` without fields is an input with all defaults."""
    declared: dict[str, InputFields | None] = located.value
    return tuple(
        Input(name, fields.dtype, fields.keyword, _value_range(fields, located.node.items[name], problems))
        if fields
        else Input(name)
        for name, fields in declared.items()
    )


def _value_range(fields: InputFields, node: Node, problems: Problems) -> ValueRange | None:
    """The range of an input's values, or None. Adds a problem when the range does not fit the input's type."""
    if fields.range is None:
        return None
    result = value_range(fields.dtype, *fields.range)
    if not isinstance(result, InvalidRange):
        return result
    problems.add(node.items["range"].origin, result.text, result.hint)
    return None


def resolve_dims(located: LocatedValue | None, inputs: tuple[Input, ...], problems: Problems) -> tuple[NamedDim, ...]:
    """The dims and the places of each dim, in the order of the inputs' axes."""
    declared: dict[str, DimFields] = (located.value if located else None) or {}
    order = {entry.name: index for index, entry in enumerate(inputs)}
    dim_of_place: dict[tuple[str, int], str] = {}
    dims = []
    for name, fields in declared.items():
        node = located.node.items[name] if located else None
        places: list[tuple[str, int]] = []
        for index, place_text in enumerate(fields.at):
            input_name, _, axis = place_text.partition(".")
            place = (input_name, int(axis))
            text = hint = ""
            if input_name not in order:
                text = f"there is no input {input_name!r} for dim {name!r}"
                hint = suggestion(input_name, order, "inputs")
            elif place in dim_of_place:
                text = f"{place_text} is already in dim {dim_of_place[place]!r}"
                hint = "name one dim for each axis, once"
            if text and node:
                problems.add(place_node(node, index).origin, text, hint)
            else:
                dim_of_place[place] = name
                places.append(place)
        if places:
            places.sort(key=lambda place: (order[place[0]], place[1]))
            dims.append(NamedDim(name, tuple(places), fields.multiple_of))
    return tuple(sorted(dims, key=lambda dim: (order[dim.at[0][0]], dim.at[0][1], dim.name)))


def place_node(node: Node, index: int) -> Node:
    """The node of place number `index` in a dim, in any of the forms ``{at: [a.0]}``, ``[a.0]`` and ``a.0``."""
    places = node.items.get("at", node)
    return places.elements[index] if places.elements else places


def resolve_profile(
    entry: ProfileEntry, model: str, use_origin: Origin, inputs: tuple[Input, ...], problems: Problems
) -> Profile | None:
    """A profile with the inputs of a model, in their order, or None when the profile is invalid.

    Adds a problem for each input that only the profile has, or only the model. The result has the inputs that both have.
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
    """The min, opt and max shape. If only ``shape`` is written, all three are equal to it."""
    min_shape, opt_shape, max_shape = (tuple(shape or ()) for shape in (fields.min, fields.opt, fields.max))
    if fields.shape is not None:
        min_shape = opt_shape = max_shape = tuple(fields.shape)
    return ShapeRange(min_shape, opt_shape, max_shape)


def check_profile(entry: ProfileEntry, problems: Problems) -> None:
    """Add the problems of a profile that do not depend on the models that use it."""
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

    Inputs that are missing in a profile have a problem already and are skipped. Contradictions between the other inputs do
    not depend on the missing inputs.
    """
    common = [entry.name for entry in inputs if all(entry.name in dict(profile.shapes) for profile in profiles)]
    dims = tuple(
        NamedDim(dim.name, places, dim.multiple_of)
        for dim in dims
        if (places := tuple(place for place in dim.at if place[0] in common))
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
    """Add a problem at the size, list or dim that causes it."""
    origin = _shape_origin(problem, entries, dims_node)
    problems.add(origin, problem.text, problem.hint)


def _shape_origin(problem: ShapeProblem, entries: dict[str, ProfileEntry], dims_node: Node | None) -> Origin:
    """Where the manifest has the cause of a problem.

    For a problem of a dim, this is the entry of `at` that names the problem's axis (``image.0``), or the name of the dim.
    Otherwise it is the size at the problem's axis in the profile, or the whole list.
    """
    if problem.dim is not None and dims_node is not None:
        node = dims_node.items[problem.dim]
        count = max(1, len(node.items.get("at", node).elements))
        places = [place_node(node, index) for index in range(count)]
        return next((place.origin for place in places if place.data == problem.place), dims_node.keys[problem.dim])
    node = entries[problem.profile or ""].node.items[problem.input or ""]
    node = node.items.get(problem.which or "") or node.items.get("shape") or node
    if problem.axis is not None and problem.axis < len(node.elements):
        node = node.elements[problem.axis]
    return node.origin
