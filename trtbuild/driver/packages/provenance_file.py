"""``provenance.json`` of packages in place (`core.packages.provenance`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.packages import provenance
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.errors import PackageError
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.store.local.publication import copy_atomically

#: What an entry says of one run alone.
_PASSING = ("verdict", "worst_input")


def package_in_place(project: Path, plan: ModelPlan) -> Package | None:
    """The package of a model, where it is the planned one: with the engines that are planned, if these are known."""
    folder, step, contents = dict(plan.model.outputs).get("package"), plan.package, plan.contents
    if folder is None or step is None or step.record is None or contents is None:
        return None
    try:
        package = open_package(project / folder)
    except PackageError:
        return None
    if package.digest != step.record.outputs["index"].sha256:
        return None
    rebuilt = (
        engine.plan is not None and plans_of(package, engine.target).get(engine.partition) != engine.plan.sha256
        for engine in contents.engines
    )
    return None if any(rebuilt) else package


def plans_of(package: Package, target: str) -> dict[str, str]:
    """The digests of the engines that a package has for a target, by partition."""
    index = package.index
    return {part: index.files[path].sha256 for part, path in index.targets[target].engines.items()}


def write(project: Path, plan: ModelPlan, entries: Sequence[dict[str, Any]]) -> None:
    """Write what was verified of a model beside the package in place, where that is what was verified, with what was found
    of its engines elsewhere. Where there is nothing to say there is no such file."""
    folder, package = dict(plan.model.outputs).get("package"), package_in_place(project, plan)
    if package is not None:
        mine = {target for entry in entries if entry["by"] == "engine" for target in entry["targets"]}
        kept = [old for old in _known(package) if _is_of_engines(package, old) and mine.isdisjoint(old["targets"])]
        if entries or kept:
            _write(package, [*entries, *kept])
            return
    if folder is not None:
        (project / folder / provenance.NAME).unlink(missing_ok=True)


def remove(package: Package) -> None:
    """What is wrong has no provenance."""
    (package.path / provenance.NAME).unlink(missing_ok=True)


def remove_of(project: Path, plan: ModelPlan) -> None:
    """The same of a model's package, whichever is in place."""
    folder = dict(plan.model.outputs).get("package")
    if folder is not None:
        (project / folder / provenance.NAME).unlink(missing_ok=True)


def add(package: Package, entries: Sequence[dict[str, Any]]) -> None:
    """Write `entries` beside a package, with those that are there and are of other runners or targets."""
    mine = [(entry["by"], entry["targets"]) for entry in entries]
    _write(package, [*(old for old in _known(package) if (old.get("by"), old.get("targets")) not in mine), *entries])


def _known(package: Package) -> list[dict[str, Any]]:
    """The entries that are beside a package and about it."""
    known = provenance.of(package.beside(provenance.NAME), package.digest).verified
    return [dict(entry) for entry in known]


def _is_of_engines(package: Package, entry: Mapping[str, Any]) -> bool:
    """Whether an entry is about engines, and these are the ones that the package has, byte for byte."""
    try:
        if entry["by"] != "engine" or not entry["targets"]:
            return False
        return all(
            {part["partition"]: part["plans"].get(target) for part in entry["partitions"]} == plans_of(package, target)
            for target in entry["targets"]
        )
    except (KeyError, TypeError, AttributeError):  # whoever can write there can write anything
        return False


def _write(package: Package, entries: Sequence[dict[str, Any]]) -> None:
    """Only when the content differs."""
    place = package.path / provenance.NAME
    kept = [{name: value for name, value in entry.items() if name not in _PASSING} for entry in entries]
    data = provenance.to_bytes(provenance.document(package.index.model, package.digest, kept))
    if package.beside(provenance.NAME) != data:
        copy_atomically([memoryview(data)], str(place))  # in place of a link, and not through it
