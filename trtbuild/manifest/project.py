"""Read a project from its directory, by calling the other modules of `trtbuild.manifest` in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtbuild.core.model.spec import Model, Origin, Project
from trtbuild.manifest.declared import DeclaredModel, check_entries
from trtbuild.manifest.files import ManifestFile, find_manifests, read_manifests
from trtbuild.manifest.namespace import Namespace, merge_files
from trtbuild.manifest.outputs import OutputPath, check_disjoint
from trtbuild.manifest.paths import ProjectPaths
from trtbuild.manifest.resolve import resolve_model
from trtbuild.manifest.shapes import check_profile
from trtbuild.manifest.yaml_text.problems import Problems, place_text


def load_project(project: Path, files: Sequence[str] | None = None) -> Project:
    """See `trtbuild.manifest.load`."""
    problems = Problems()
    paths = ProjectPaths(project)
    manifests = read_manifests(paths, find_manifests(paths, files), problems)
    all_files = dict.fromkeys(file for manifest in manifests for file in manifest.with_includes())
    declared = {file: check_entries(file, file in manifests, problems) for file in all_files}
    for entries in declared.values():
        for profile in entries.profiles:
            check_profile(profile, problems)
    namespaces = [merge_files(manifest, declared, problems) for manifest in manifests]
    models, outputs = _resolve_all(namespaces, paths, problems)
    names = tuple(file.name for file in all_files)
    check_disjoint(outputs, _files_read(names, models), problems)
    if not problems and not models:
        origin = Origin(manifests[0].name, 1, 1)
        problems.add(origin, "no model is declared", "write `models:` and below it `name: {source: …}`")
    problems.raise_if_any()
    return Project(tuple(models), names, tuple(file.sha256 for file in all_files))


def _files_read(manifests: Sequence[str], models: Sequence[Model]) -> dict[str, str]:
    """The path of each manifest, and of each file that a manifest names (except `deps`) → a noun for messages."""
    read = dict.fromkeys(manifests, "a manifest")
    for model in models:
        if model.weights:
            read[model.weights] = "weights"
        if model.plugins is not None and model.plugins.library is not None:
            read[model.plugins.library] = "a library of plugins"
        calibration = None if model.quantization is None else model.quantization.calibration
        if calibration is not None and calibration.safetensors is not None:
            read[calibration.safetensors] = "calibration data"
        if model.source.file is not None:
            read[model.source.file] = "a source"
    return read


def _resolve_all(
    namespaces: Sequence[Namespace], paths: ProjectPaths, problems: Problems
) -> tuple[list[Model], list[OutputPath]]:
    defined: dict[str, tuple[DeclaredModel, ManifestFile]] = {}
    models: list[Model] = []
    outputs: list[OutputPath] = []
    for namespace in namespaces:
        for name, declared in namespace.models.items():
            first, first_manifest = defined.setdefault(name, (declared, namespace.file))
            if first_manifest is not namespace.file:
                _add_duplicate_problem(name, declared, namespace.file, first, first_manifest, problems)
                continue
            model = resolve_model(declared, namespace, paths, outputs, problems)
            if model is not None:
                models.append(model)
    return models, outputs


def _add_duplicate_problem(
    name: str,
    declared: DeclaredModel,
    manifest: ManifestFile,
    first: DeclaredModel,
    first_manifest: ManifestFile,
    problems: Problems,
) -> None:
    if declared is first:
        both = f"{first_manifest.name} and {manifest.name} both include {declared.name_origin.file}"
        text = f"model {name!r} is in the project twice: {both}"
        hint = "include the file in one manifest; share only targets, profiles and defaults"
    else:
        text = f"model {name!r} is already defined at {place_text(first.name_origin)}"
        hint = "the names of models are unique in the whole project: rename one of the two"
    problems.add(declared.name_origin, text, hint)
