"""Read manifests, the YAML files that declare models, shape profiles and targets, as values of `trtbuild.core.model.spec`.

`load` calls the module `project`, which calls the others in this order:

1. `files` finds and reads the manifests, with `yaml_text`.
2. `declared` checks the entries of each file, with `format`.
3. `namespace` joins the entries of a manifest and of the files that it includes.
4. `resolve` completes each model. It uses `source`, `shapes`, `quantization`, `plugins`, `outputs` and `contradictions`.

An import of this package is fast, because only a call imports pydantic and yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.model.spec import Project

__all__ = ["load", "reference", "schema"]


def load(project: Path, files: Sequence[str] | None = None) -> Project:
    """Read all models of a project.

    `project` is the working directory (after ``-C``). `files` are the paths of the manifests, relative to `project`.
    Without `files`, ``trtbuild.yaml`` is read. If that file is missing, ``manifests/*.yaml`` are read.

    Raises one ManifestErrors with all problems of all files, and UsageError if the project has no manifest.
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
