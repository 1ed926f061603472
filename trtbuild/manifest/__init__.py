"""Manifests: YAML files that declare models, shape profiles and targets, read into `trtbuild.core.model.spec` values.

`load` reads a project's directory and returns a `Project`, or raises one error with all problems of all files. The module
`project` calls the steps in order: `files` finds and reads manifests, `declared` checks their entries, `namespace` merges
files. Then `resolve` completes each model, and uses `source`, `shapes`, `quantization`, `plugins`, `outputs` and
`contradictions`. The folders are `yaml_text` (text and lines) and `format` (fields and their values). An import of this
module is fast, because only a call imports pydantic and yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.model.spec import Project

__all__ = ["load", "reference", "schema"]


def load(project: Path, files: Sequence[str] | None = None) -> Project:
    """Read the project: all models of its manifests.

    `project` is the working directory (after ``-C``). `files` are the paths of the manifests, relative to `project`.
    Without `files`, ``trtbuild.yaml`` is read. If that file is missing, ``manifests/*.yaml`` are read.

    Raises ManifestErrors with every problem of every file, and UsageError when the project has no manifest.
    """
    from trtbuild.manifest.project import load_project

    return load_project(project, files)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest, for editors and other tools."""
    from trtbuild.manifest.format.schema import manifest_schema

    return manifest_schema()


def reference() -> str:
    """The text of ``docs/manifest.md``: every field, its allowed values and its default."""
    from trtbuild.manifest.reference import manifest_reference

    return manifest_reference()
