"""A model's source: its kind, its place and its dependencies."""

from __future__ import annotations

from typing import Any

from trtbuild.core.model.source_kinds import CALLABLES, SOURCE_KINDS, SourceKind
from trtbuild.core.model.spec import Origin, Source
from trtbuild.manifest.declared import LocatedValue
from trtbuild.manifest.format.fields import SourceFields
from trtbuild.manifest.format.kinds import in_words
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of, import_roots
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node


def declared_kinds(declared: SourceFields) -> list[SourceKind]:
    """The kinds that a source names: exactly one in a valid manifest."""
    return [kind for name, kind in SOURCE_KINDS.items() if getattr(declared, name) is not None]


def resolve_source(located: LocatedValue, model: str, paths: ProjectPaths, problems: Problems) -> Source | None:
    """The source that a model declares, or None when it is invalid; its problems are then added."""
    declared: SourceFields = located.value
    node = located.node
    named = declared_kinds(declared)
    if len(named) != 1:
        names = " and ".join(f"`{kind.name}`" for kind in named)
        text = f"{names} cannot be used together" if named else "the source has no kind"
        problems.add(
            node.key_origin(named[1].name) if named else located.key,
            f"{text} in model {model!r}",
            f"write exactly one of {', '.join(SOURCE_KINDS)}",
        )
        return None
    kind = named[0]
    if declared.kwargs is not None and kind.file is not None:
        problems.add(
            node.keys["kwargs"],
            f"`kwargs` are for {in_words(CALLABLES, 'and')} sources, and the source is `{kind.name}`",
            "remove kwargs",
        )
        return None
    target = getattr(declared, kind.name)
    folder = folder_of(node.file)
    if kind.file is not None:
        target = paths.named(target, folder)
        check_readable(paths, target, kind.file, node.items[kind.name].origin, problems)
    return Source(
        kind=kind.name,
        target=target,
        kwargs=_kwargs(declared, node, problems),
        deps=tuple(sorted({paths.named(pattern, folder) for pattern in declared.deps or ()})),
        env=tuple(sorted(set(declared.env or ()))),
        cacheable=declared.cacheable,
        roots=import_roots(node.file),
    )


def _kwargs(declared: SourceFields, node: Node, problems: Problems) -> dict[str, Any]:
    kwargs = declared.kwargs or {}
    for name in kwargs:
        if not name.isidentifier():
            origin: Origin = node.items["kwargs"].keys[name]
            problems.add(
                origin, f"{name!r} cannot be the name of an argument", "kwargs are passed by name to the callable"
            )
    return kwargs
