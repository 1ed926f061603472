"""Manifests: YAML files that declare models, shape profiles and targets, read into `trtbuild.core.spec` values.

The story, a file each: `files` finds and reads manifests and what they include; `tree` and `scalars` turn YAML text into
nodes that know their place; `fields` says what may be written, with `kinds` for single values; `declared` checks one
file's entries and `wording` says what is wrong; `namespace` merges the files of one manifest; `resolve`, with `source`
and `shapes`, makes each model whole; `outputs` looks at all of them together. `schema` and `reference` describe the
same fields to editors and people.

Importing this package is cheap; pydantic and yaml are imported by the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.spec import Project

__all__ = ["load", "reference", "schema"]


def load(project: Path, files: Sequence[str] | None = None) -> Project:
    """All models of the project's manifests.

    `project` is the working directory (after ``-C``). `files` are the manifests' paths relative to it; without them
    ``trtbuild.yaml`` is read, or, only if that is missing, ``manifests/*.yaml``.

    Raises ManifestErrors with every problem of every file, and UsageError when there is no manifest at all.
    """
    from trtbuild.manifest.project import load_project

    return load_project(project, files)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest, for editors and other checkers."""
    from trtbuild.manifest.schema import manifest_schema

    return manifest_schema()


def reference() -> str:
    """``docs/manifest.md``: every field, what it may be and what it is without being said."""
    from trtbuild.manifest.reference import manifest_reference

    return manifest_reference()
