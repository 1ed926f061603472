"""Check the paths of a project's outputs."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trtbuild.core.model.spec import Origin, Target
from trtbuild.core.packages.exported_file import exported_file_paths
from trtbuild.manifest.declared import INVALID, DeclaredModel, LocatedValue
from trtbuild.manifest.paths import is_outside
from trtbuild.manifest.yaml_text.problems import Problems, place_text

#: The folder in the project for trtbuild's own files, such as logs and snapshots.
STATE_FOLDER = ".trtbuild"
OUTPUT_KINDS = ("package", "plans", "triton", "pt2")


@dataclass(frozen=True)
class OutputPath:
    """The path of one output of a model. `origin` is the place of its field, or of the model for the default output.

    If a model has several targets, it has a ``.pt2`` file for each, at `target_files`. Then there is no file at `path`.
    """

    model: str
    kind: str
    path: str
    origin: Origin
    target_files: tuple[str, ...] = ()


def resolve_outputs(
    declared: DeclaredModel, located: LocatedValue | None, targets: Sequence[Target], problems: Problems
) -> list[OutputPath]:
    """A model's outputs in the order of `OUTPUT_KINDS`, or the default ``{package: dist/<model>}``.

    An output whose path is not allowed is left out, and its problem is added."""
    if located is not None and located.value is INVALID:
        return []
    declared_paths = {
        kind: path for kind in OUTPUT_KINDS if located and located.value and (path := getattr(located.value, kind))
    }
    if located is None or not declared_paths:
        return [OutputPath(declared.name, "package", f"dist/{declared.name}", declared.name_origin)]
    outputs = []
    for kind, path_text in declared_paths.items():
        origin = located.node.items[kind].origin
        path = posixpath.normpath(path_text)
        hint = "write another path inside the project, such as `dist/…`"
        if is_outside(path):
            problems.add(origin, f"the output {path_text!r} is outside of the project", hint)
        elif path == ".":
            problems.add(origin, f"the output {path_text!r} is the project itself", hint)
        elif path.split("/")[0] == STATE_FOLDER:
            problems.add(
                origin, f"the output {path_text!r} is inside of trtbuild's own state, which may be deleted", hint
            )
        elif kind == "pt2" and not path.endswith(".pt2"):
            text = f"the output {path_text!r} is a file, and its name does not end in .pt2"
            problems.add(origin, text, f"write {path}.pt2")
        else:
            several_pt2_files = kind == "pt2" and len(targets) > 1
            names = [target.name for target in targets] if several_pt2_files else []
            target_files = tuple(exported_file_paths(path, names).values())
            outputs.append(OutputPath(declared.name, kind, path, located.node.keys[kind], target_files))
    return outputs


def check_disjoint(outputs: Sequence[OutputPath], files_read: Mapping[str, str], problems: Problems) -> None:
    """Add a problem for each output that overlaps with another output, or with a file that the build reads.

    Only a Triton repository may be shared, because each model has its own directories in it. `files_read` maps the path
    of each manifest, and of each file that a manifest names (except `deps`), to a noun for messages, such as "weights".
    """
    output_by_path: dict[str, OutputPath] = {}
    repositories: dict[str, list[OutputPath]] = {}
    for output in outputs:
        first = output_by_path.setdefault(output.path, output)
        if output.kind == first.kind == "triton":
            repositories.setdefault(output.path, []).append(output)
        elif first is not output:
            _add_clash_problem(output, "is also", first, problems)
    for outputs_in_repository in repositories.values():
        _check_engine_names(outputs_in_repository, problems)
    distinct_outputs = list(output_by_path.values())
    for output in distinct_outputs:
        for path in output.target_files:
            file = replace(output, path=path)
            first = output_by_path.setdefault(path, file)
            if first is not file:
                _add_clash_problem(file, "is also", first, problems)
    for output in distinct_outputs:
        for parent in _parent_paths(output.path):
            if parent in output_by_path:
                _add_clash_problem(output, f"is inside of {parent!r},", output_by_path[parent], problems)
    for source, noun in files_read.items():
        for path in (source, *_parent_paths(source)):
            if path in output_by_path:
                problems.add(
                    output_by_path[path].origin,
                    f"the output {path!r} of model {output_by_path[path].model!r} would replace {noun}, {source!r}",
                    "write another path, such as `dist/…`",
                )


def _check_engine_names(outputs_in_repository: Sequence[OutputPath], problems: Problems) -> None:
    """Add a problem for each model whose name may be that of another model's engine in the same Triton repository.

    Triton serves each engine as a model with the name ``<model>.<partition>``."""
    output_by_model = {output.model: output for output in outputs_in_repository}
    for output in outputs_in_repository:
        for dot in (index for index, letter in enumerate(output.model) if letter == "."):
            other = output_by_model.get(output.model[:dot])
            if other is not None:
                problems.add(
                    output.origin,
                    f"in the repository {output.path!r}, {output.model!r} may also be an engine of model {other.model!r} "
                    f"({place_text(other.origin)})",
                    "give one of them another name or another repository",
                )


def _parent_paths(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _add_clash_problem(output: OutputPath, relation: str, other: OutputPath, problems: Problems) -> None:
    problems.add(
        output.origin,
        f"the output {output.path!r} ({output.kind} of model {output.model!r}) {relation} "
        f"the {other.kind} of model {other.model!r} ({place_text(other.origin)})",
        "give each output its own path",
    )
