"""The paths of a project's outputs. Each output has its own path inside the project."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.model.spec import Origin
from trtbuild.manifest.declared import INVALID, DeclaredModel, LocatedValue
from trtbuild.manifest.paths import outside
from trtbuild.manifest.yaml_text.problems import Problems, place

#: The folder of the builder's state in the project.
STATE_FOLDER = ".trtbuild"
KINDS = ("package", "plans", "triton", "pt2")


@dataclass(frozen=True)
class Output:
    """The path of one kind of output of a model. `origin` is the output's field, or the model for a default path."""

    model: str
    kind: str
    path: str
    origin: Origin


def resolve_outputs(declared: DeclaredModel, located: LocatedValue | None, problems: Problems) -> list[Output]:
    """A model's outputs in the order of `KINDS`; `{package: dist/<model>}` when the model has no `outputs`."""
    if located is not None and located.value is INVALID:
        return []
    declared_paths = {
        kind: path for kind in KINDS if located and located.value and (path := getattr(located.value, kind))
    }
    if located is None or not declared_paths:
        return [Output(declared.name, "package", f"dist/{declared.name}", declared.key)]
    outputs = []
    for kind, written in declared_paths.items():
        origin = located.node.items[kind].origin
        path = posixpath.normpath(written)
        hint = "write another path inside the project, such as `dist/…`"
        if outside(path):
            problems.add(origin, f"the output {written!r} is outside of the project", hint)
        elif path == ".":
            problems.add(origin, f"the output {written!r} is the project itself", hint)
        elif path.split("/")[0] == STATE_FOLDER:
            problems.add(
                origin, f"the output {written!r} is inside of trtbuild's own state, which may be deleted", hint
            )
        elif kind == "pt2" and not path.endswith(".pt2"):
            text = f"the output {written!r} is a file, and its name does not end in .pt2"
            problems.add(origin, text, f"write {path}.pt2")
        else:
            outputs.append(Output(declared.name, kind, path, located.node.keys[kind]))
    return outputs


def check_disjoint(outputs: Sequence[Output], read: Mapping[str, str], problems: Problems) -> None:
    """Add a problem for each output that has the path of another output, is inside another output, or would replace a file
    that the build reads.

    Models may share a Triton repository, in which each model has its own directories. `read` maps the path of each
    file that the build reads to a noun, such as "weights".
    """
    owners: dict[str, Output] = {}
    repositories: dict[str, list[Output]] = {}
    for output in outputs:
        first = owners.setdefault(output.path, output)
        if output.kind == first.kind == "triton":
            repositories.setdefault(output.path, []).append(output)
        elif first is not output:
            _add_clash(output, "is also", first, problems)
    for sharing in repositories.values():
        _check_engine_names(sharing, problems)
    for output in owners.values():
        for parent in _parents(output.path):
            if parent in owners:
                _add_clash(output, f"is inside of {parent!r},", owners[parent], problems)
    for source, noun in read.items():
        for path in (source, *_parents(source)):
            if path in owners:
                problems.add(
                    owners[path].origin,
                    f"the output {path!r} of model {owners[path].model!r} would replace {noun}, {source!r}",
                    "write another path, such as `dist/…`",
                )


def _check_engine_names(sharing: Sequence[Output], problems: Problems) -> None:
    """Add a problem for each model whose name may equal the name of another model's engine, ``<model>.<partition>``."""
    owners = {output.model: output for output in sharing}
    for output in sharing:
        for end in (index for index, letter in enumerate(output.model) if letter == "."):
            other = owners.get(output.model[:end])
            if other is not None:
                problems.add(
                    output.origin,
                    f"in the repository {output.path!r}, {output.model!r} may also be an engine of model {other.model!r} "
                    f"({place(other.origin)})",
                    "give one of them another name or another repository",
                )


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _add_clash(output: Output, relation: str, other: Output, problems: Problems) -> None:
    problems.add(
        output.origin,
        f"the output {output.path!r} ({output.kind} of model {output.model!r}) {relation} "
        f"the {other.kind} of model {other.model!r} ({place(other.origin)})",
        "give each output its own path",
    )
