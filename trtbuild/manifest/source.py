"""A model's source: which kind, where it lies, and what it depends on."""

from __future__ import annotations

from typing import Any

from trtbuild.core.model.spec import Origin, Source
from trtbuild.manifest.declared import Picked
from trtbuild.manifest.format.fields import SourceFields
from trtbuild.manifest.format.kinds import SOURCES
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of, import_roots
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node

#: Kinds that name a callable; the others name a file, which is called so in messages.
CALLABLES = ("python", "network")
FILES = {"exported_program": "the exported program", "onnx": "the ONNX file", "torchscript": "the TorchScript file"}


def resolve_source(picked: Picked, model: str, paths: ProjectPaths, problems: Problems) -> Source | None:
    """The source that a model declares, or None where it is wrong."""
    declared: SourceFields = picked.value
    node = picked.node
    given: list[str] = [kind for kind in SOURCES if getattr(declared, kind) is not None]
    if len(given) != 1:
        said = f"{' and '.join(f'`{kind}`' for kind in given)} stand together" if given else "the source says no kind"
        problems.add(
            node.key_origin(given[1]) if given else picked.key,
            f"{said} in model {model!r}",
            f"write exactly one of {', '.join(SOURCES)}",
        )
        return None
    kind = given[0]
    if declared.kwargs is not None and kind not in CALLABLES:
        problems.add(
            node.keys["kwargs"],
            f"`kwargs` are for `python` and `network` sources, and this is `{kind}`",
            "remove kwargs",
        )
        return None
    target = getattr(declared, kind)
    folder = folder_of(node.file)
    if kind in FILES:
        target = paths.named(target, folder)
        check_readable(paths, target, FILES[kind], node.items[kind].origin, problems)
    return Source(
        kind=kind,  # type: ignore[arg-type]  # one of SOURCES
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
