"""Where a project's outputs are written: inside the project, and each in a place of its own."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.model.spec import Origin
from trtbuild.manifest.declared import BROKEN, DeclaredModel, Picked
from trtbuild.manifest.paths import outside
from trtbuild.manifest.yaml_text.problems import Problems, place

#: Where the builder keeps what it knows about the project.
STATE_FOLDER = ".trtbuild"
KINDS = ("package", "plans", "triton", "pt2")


@dataclass(frozen=True)
class Output:
    """Where one kind of output of a model goes, and where that is said (at the model, if it is not said)."""

    model: str
    kind: str
    path: str
    origin: Origin


def resolve_outputs(declared: DeclaredModel, picked: Picked | None, problems: Problems) -> list[Output]:
    """A model's outputs in the order of `KINDS`; `{package: dist/<model>}` where none is said."""
    if picked is not None and picked.value is BROKEN:
        return []
    said = {kind: path for kind in KINDS if picked and picked.value and (path := getattr(picked.value, kind))}
    if picked is None or not said:
        return [Output(declared.name, "package", f"dist/{declared.name}", declared.key)]
    outputs = []
    for kind, written in said.items():
        origin = picked.node.items[kind].origin
        path = posixpath.normpath(written)
        own = "write a path of its own inside, such as `dist/…`"
        if outside(path):
            problems.add(origin, f"the output {written!r} lies outside of the project", own)
        elif path == ".":
            problems.add(origin, f"the output {written!r} is the project itself", own)
        elif path.split("/")[0] == STATE_FOLDER:
            problems.add(origin, f"the output {written!r} lies in trtbuild's own state, which may be deleted", own)
        elif kind == "pt2" and not path.endswith(".pt2"):
            wrong = f"the output {written!r} is a file, and its name does not end in .pt2"
            problems.add(origin, wrong, f"write {path}.pt2")
        else:
            outputs.append(Output(declared.name, kind, path, picked.node.keys[kind]))
    return outputs


def check_apart(outputs: Sequence[Output], read: Mapping[str, str], problems: Problems) -> None:
    """That no output is another's place, lies in one, or would replace what the project is built from.

    Models may share a Triton repository, where each has directories of its own. `read` holds the paths of what is read,
    and what each is.
    """
    owners: dict[str, Output] = {}
    repositories: dict[str, list[Output]] = {}
    for output in outputs:
        other = owners.setdefault(output.path, output)
        if output.kind == other.kind == "triton":
            repositories.setdefault(output.path, []).append(output)
        elif other is not output:
            _add_clash(output, "is also", other, problems)
    for shared in repositories.values():
        _check_names_apart(shared, problems)
    for output in owners.values():
        for parent in _parents(output.path):
            if parent in owners:
                _add_clash(output, f"lies in {parent!r},", owners[parent], problems)
    for source, what in read.items():
        for path in (source, *_parents(source)):
            if path in owners:
                problems.add(
                    owners[path].origin,
                    f"the output {path!r} of model {owners[path].model!r} would replace {what}, {source!r}",
                    "write a path of its own, such as `dist/…`",
                )


def _check_names_apart(shared: Sequence[Output], problems: Problems) -> None:
    """That no model of a Triton repository can have the name of an engine of another: ``<model>.<partition>``."""
    owners = {output.model: output for output in shared}
    for output in shared:
        for end in (at for at, letter in enumerate(output.model) if letter == "."):
            other = owners.get(output.model[:end])
            if other is not None:
                problems.add(
                    output.origin,
                    f"in the repository {output.path!r}, {output.model!r} may also be an engine of model {other.model!r} "
                    f"({place(other.origin)})",
                    "give one of them another name, or a repository of its own",
                )


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _add_clash(output: Output, relation: str, other: Output, problems: Problems) -> None:
    problems.add(
        output.origin,
        f"the output {output.path!r} ({output.kind} of model {output.model!r}) {relation} "
        f"the {other.kind} of model {other.model!r} ({place(other.origin)})",
        "give each output a path of its own",
    )
