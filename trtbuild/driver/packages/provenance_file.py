"""Read and write ``provenance.json`` in the directories of packages (`core.packages.provenance`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.core.model.verified import CutEntry
from trtbuild.core.packages import provenance
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.values.codec import encode
from trtbuild.errors import PackageError
from trtbuild.runtime.packages.package import Package, open_package

#: The fields of an entry that are not written, because they describe a single run.
_TRANSIENT_FIELDS = ("verdict", "worst_input", "worker")


def package_in_place(project: Path, plan: ModelPlan) -> Package | None:
    """Return the package in a model's output directory; None if no package is there, or if its index or an engine is not
    the planned one."""
    folder, step, contents = dict(plan.model.outputs).get("package"), plan.package, plan.contents
    if folder is None or step is None or step.record is None or contents is None:
        return None
    try:
        package = open_package(project / folder)
    except PackageError:
        return None
    if package.digest != step.record.outputs["index"].sha256:
        return None
    differences = (
        engine.plan is not None and plans_of(package, engine.target).get(engine.partition) != engine.plan.sha256
        for engine in contents.engines
    )
    return None if any(differences) else package


def plans_of(package: Package, target: str) -> dict[str, str]:
    """Return partition → the SHA-256 of its engine for `target`."""
    index = package.index
    return {partition: index.files[path].sha256 for partition, path in index.targets[target].engines.items()}


def write(project: Path, plan: ModelPlan, entries: Sequence[CutEntry]) -> None:
    """Write the results of a model's verification into the directory of its package, if this package is the planned one.

    Each entry is about one cut, a way to divide the model into partitions. An existing entry stays if it is about exactly
    the engines of this package, and no new entry about engines has one of its targets. If there is neither a new entry nor
    one that stays, or if another package is there, the file is removed.
    """
    folder, package = dict(plan.model.outputs).get("package"), package_in_place(project, plan)
    if package is not None:
        new_targets = {target for entry in entries if entry.by == "engine" for target in entry.targets}
        kept = [
            old
            for old in _existing_entries(package)
            if _is_about_same_engines(package, old) and new_targets.isdisjoint(old["targets"])
        ]
        if entries or kept:
            _write_file(package, [*map(_without_transient_fields, entries), *kept])
            return
    if folder is not None:
        (project / folder / provenance.PROVENANCE_FILE).unlink(missing_ok=True)


def remove(package: Package) -> None:
    """Remove the provenance of `package`, for example because a verification failed."""
    (package.path / provenance.PROVENANCE_FILE).unlink(missing_ok=True)


def remove_from_output(project: Path, plan: ModelPlan) -> None:
    """Remove the provenance from a model's output directory, even if another package is there."""
    folder = dict(plan.model.outputs).get("package")
    if folder is not None:
        (project / folder / provenance.PROVENANCE_FILE).unlink(missing_ok=True)


def add(package: Package, entries: Sequence[CutEntry]) -> None:
    """Add `entries` to the provenance of a package. They replace entries with the same `by` and the same `targets`."""
    replaced = [(entry.by, list(entry.targets)) for entry in entries]
    kept = [old for old in _existing_entries(package) if (old.get("by"), old.get("targets")) not in replaced]
    _write_file(package, [*kept, *map(_without_transient_fields, entries)])


def _existing_entries(package: Package) -> list[dict[str, Any]]:
    entries = provenance.parse(package.read_unlisted(provenance.PROVENANCE_FILE), package.digest).verified
    return [dict(entry) for entry in entries]


def _is_about_same_engines(package: Package, entry: Mapping[str, Any]) -> bool:
    """Whether an entry is about engines with the same bytes as those of the package."""
    try:
        if entry["by"] != "engine" or not entry["targets"]:
            return False
        return all(
            {
                partition_entry["partition"]: partition_entry["plans"].get(target)
                for partition_entry in entry["partitions"]
            }
            == plans_of(package, target)
            for target in entry["targets"]
        )
    except (KeyError, TypeError, AttributeError):  # the file may contain anything
        return False


def _without_transient_fields(entry: CutEntry) -> dict[str, Any]:
    return {name: value for name, value in encode(entry).items() if name not in _TRANSIENT_FIELDS}


def _write_file(package: Package, entries: Sequence[Mapping[str, Any]]) -> None:
    path = package.path / provenance.PROVENANCE_FILE
    data = provenance.to_bytes(provenance.document(package.index.model, package.digest, entries))
    if package.read_unlisted(provenance.PROVENANCE_FILE) != data:
        replace_file(path, data, durable=True)  # replaces a link instead of following it
