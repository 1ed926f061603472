"""Check a model's field ``source:``."""

from __future__ import annotations

from typing import Any

from trtbuild.core.model.source_kinds import CALLABLE_KINDS, SOURCE_KINDS, SourceKind
from trtbuild.core.model.spec import Origin, Source
from trtbuild.manifest.declared import LocatedValue
from trtbuild.manifest.format.kinds import join_names
from trtbuild.manifest.format.source_fields import SourceFields
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of, import_roots
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node


def kinds_of_source(declared: SourceFields) -> list[SourceKind]:
    """The kinds that a source names. A valid source names exactly one."""
    return [kind for name, kind in SOURCE_KINDS.items() if getattr(declared, name) is not None]


def resolve_source(located: LocatedValue, model: str, paths: ProjectPaths, problems: Problems) -> Source | None:
    """The source that a model declares. Adds its problems.

    None if it does not name exactly one kind, or if it has `kwargs` although its kind takes none.
    """
    declared: SourceFields = located.value
    node = located.node
    kinds = kinds_of_source(declared)
    if len(kinds) != 1:
        names = " and ".join(f"`{kind.name}`" for kind in kinds)
        text = f"{names} cannot be used together" if kinds else "the source has no kind"
        problems.add(
            node.key_origin(kinds[1].name) if kinds else located.name_origin,
            f"{text} in model {model!r}",
            f"write exactly one of {', '.join(SOURCE_KINDS)}",
        )
        return None
    kind = kinds[0]
    if declared.kwargs is not None and kind.file is not None:
        problems.add(
            node.keys["kwargs"],
            f"`kwargs` are for {join_names(CALLABLE_KINDS, 'and')} sources, and the source is `{kind.name}`",
            "remove kwargs",
        )
        return None
    target = getattr(declared, kind.name)
    folder = folder_of(node.file)
    if kind.file is not None:
        target = paths.name_of(target, folder)
        check_readable(paths, target, kind.file, node.items[kind.name].origin, problems)
    return Source(
        kind=kind.name,
        target=target,
        kwargs=_kwargs(declared, node, problems),
        deps=tuple(sorted({paths.name_of(pattern, folder) for pattern in declared.deps or ()})),
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
