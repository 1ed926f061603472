"""The facts about this machine that recipes contain, above all the versions of installed distributions.

Versions are read from metadata, because this takes a millisecond and needs no GPU. An import of torch takes seconds. The
workers check that they load these versions.

If the lock file contains the model and the target with the same toolchain, it determines the version of the toolchain.
Otherwise the version is the one that the manifest pins, or the installed one. A step never runs with a version other than
the planned one, because the planned versions are compared with the installed ones before any step runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.planning.locks import LOCK_FILE, Lock, LockedModel, stage_of
from trtbuild.core.planning.lookups import LockedSteps
from trtbuild.core.planning.model_plan import Facts, ToolchainFacts
from trtbuild.core.recipes import key_fields
from trtbuild.core.recipes.lookup_recipes import stand_in_of
from trtbuild.driver.project.blame import place_of_target
from trtbuild.errors import EnvironmentFault, LockFileError, ToolchainMissing
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.devices import device_sms
from trtbuild.toolchain.libraries.distributions import installed_version

#: The distributions whose versions are in the recipes of calibrate, trace, lower, partition and convert.
TORCH_DISTRIBUTIONS = ("torch", "onnx", "onnx-ir", "onnxscript")

#: The commands that replace the versions in a lock file by the installed versions.
UPGRADE_COMMANDS = "trtbuild build --upgrade, then trtbuild lock --upgrade"

_TORCH_REQUIREMENT = "'trtbuild[torch]'"


def torch_versions() -> dict[str, str] | None:
    """The versions of Python and of `TORCH_DISTRIBUTIONS`, or None if one of them is not installed."""
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in TORCH_DISTRIBUTIONS:
        version = installed_version(name)
        if version is None:
            return None
        versions[name] = version
    return versions


def missing_torch_distributions() -> list[str]:
    return [name for name in TORCH_DISTRIBUTIONS if installed_version(name) is None]


def gather_facts(models: Sequence[Model], lock: Lock | None = None) -> dict[str, Facts]:
    """Name of a model → the facts for its plan.

    Raises ToolchainMissing if the version of a toolchain is neither locked nor pinned, and the toolchain is not installed.
    Raises LockFileError if a pinned version differs from the lock.
    """
    platform, installed = table.host_platform(), torch_versions()
    facts: dict[str, Facts] = {}
    toolchains: dict[tuple[Target, str | None], ToolchainFacts] = {}
    for model in models:
        locked = lock.models.get(model.name) if lock is not None else None
        model_toolchains: dict[Target, ToolchainFacts] = {}
        for target in model.targets:
            version = _locked_version(model, target, lock)
            if (target, version) not in toolchains:
                try:
                    toolchains[target, version] = toolchain_facts(target, version)
                except EnvironmentFault as error:
                    place_of_target(error, model, target)
                    raise
            model_toolchains[target] = toolchains[target, version]
        versions = installed if locked is None or installed == locked.versions else None
        locked_steps = _locked_steps(locked) if locked is not None else None
        sms = {target: table.built_sms(target) for target in model.targets}
        facts[model.name] = Facts(platform, versions, model_toolchains, ENGINE_ENVIRONMENT, locked_steps, sms)
    return facts


def _locked_steps(locked: LockedModel) -> LockedSteps:
    partition_keys = tuple(step.key for name, step in locked.steps.items() if stage_of(name) == "partition")
    return LockedSteps(locked.key_of("trace"), locked.versions, partition_keys, locked.key_of("calibrate"))


def _locked_version(model: Model, target: Target, lock: Lock | None) -> str | None:
    """The locked version of a target's toolchain; None if the lock does not have the target with this toolchain.

    Raises LockFileError if the manifest pins another version.
    """
    if lock is None or model.name not in lock.models:
        return None
    entry = lock.models[model.name].targets.get(target.name)
    if entry is None or entry.toolchain != target.toolchain:
        return None
    if target.version is not None and target.version != entry.version:
        from trtbuild.core.planning.lockfile import line_of

        place = f"{LOCK_FILE}:{line_of(lock.text, 'models', model.name, 'targets', target.name)}"
        error = LockFileError(
            f"target {target.name!r} of model {model.name!r} is pinned to {target.toolchain} {target.version}, and {place} "
            f"has {entry.version}: the lock is out of date",
            hint=f"{UPGRADE_COMMANDS}; or set the pin to {entry.version}",
        )
        place_of_target(error, model, target)
        raise error
    return entry.version


def toolchain_facts(target: Target, locked: str | None = None) -> ToolchainFacts:
    """The facts about a target's toolchain, among them its exact version.

    The version is `locked`, otherwise the pinned one, otherwise the installed one. Raises ToolchainMissing if there is no
    such version. If the toolchain's own parser cannot run on this machine, another parser may replace it: the stand-in.
    """
    version = locked or target.version or table.installed_version(target.toolchain)
    flavour = table.FLAVOURS[target.toolchain]
    if version is None:
        raise ToolchainMissing(
            f"target {target.name!r} needs {target.toolchain}, which is not installed",
            hint=f"pip install '{flavour.distribution}', or pin the target's version to use engines from the cache",
        )
    opset = table.opset(target.toolchain, version)
    if not flavour.needs_gpu:
        return ToolchainFacts(version, opset, flavour.default_workspace)
    has_own_parser = table.installed_version(target.toolchain) == version and bool(device_sms())
    stand_in = None if has_own_parser else table.stand_in(target.toolchain, version)
    has_parser = has_own_parser or stand_in is not None
    return ToolchainFacts(
        version,
        opset,
        flavour.default_workspace,
        stand_in,
        parsers_differ=True,
        has_parser=has_parser,
        narrows_int64=table.narrows_int64(target.toolchain, version),
    )


def check_torch_libraries(model: str, facts: Facts) -> None:
    """Raise ToolchainMissing or EnvironmentFault if this machine cannot trace or convert `model`."""
    if facts.versions is not None:
        return
    locked = facts.locked_steps.versions if facts.locked_steps is not None else {}
    missing = missing_torch_distributions()
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        requirements = " ".join(f"'{name}=={locked[name]}'" for name in missing if name in locked)
        raise ToolchainMissing(
            f"model {model!r} has to be traced or converted, but {' and '.join(missing)} {verb} not installed",
            hint=f"pip install {requirements or _TORCH_REQUIREMENT}",
        )
    installed = torch_versions() or {}
    differing = [name for name in sorted({**locked, **installed}) if locked.get(name) != installed.get(name)]
    versions = ", ".join(
        f"{name} {locked.get(name, '(none)')} (installed: {installed.get(name, 'none')})" for name in differing
    )
    install = [f"'{name}=={locked[name]}'" for name in differing if name in locked and name != "python"]
    remedies = [f"use Python {locked['python']}"] if "python" in differing and "python" in locked else []
    remedies += [f"pip install {' '.join(install)}"] if install else []
    raise EnvironmentFault(
        f"model {model!r} has to be traced or converted, and {LOCK_FILE} requires {versions}",
        hint=f"{' and '.join(remedies)}; or use the installed versions: {UPGRADE_COMMANDS}",
    )


def check_parsers(model: str, facts: Facts, toolchains: Collection[str]) -> None:
    """Raise ToolchainMissing if `model` has to be partitioned for a toolchain for which this machine has no parser.

    A partition step asks the parser which nodes TensorRT accepts. A stand-in counts as a parser, too.
    """
    for target, toolchain in facts.toolchains.items():
        if target.toolchain in toolchains and not toolchain.has_parser:
            raise ToolchainMissing(
                f"model {model!r} has to be partitioned for {target.toolchain} {toolchain.version}, but no parser is "
                f"available: the parser of {target.toolchain} needs a GPU, and tensorrt-rtx, whose parser can replace it, "
                "is not installed",
                hint="pip install 'trtbuild[rtx]'",
            )


def check_locked_parsers(facts: Facts, steps: Iterable[Step]) -> None:
    """Raise EnvironmentFault if a locked partition step has to run again, but its parser is not available here.

    A locked step has to run again with ``--force``, or if its results are missing.
    """
    # A model may have targets for several releases of a toolchain, and the limits of the stand-in depend on the release.
    by_release = {
        (target.toolchain, toolchain.version): toolchain
        for target, toolchain in facts.toolchains.items()
        if toolchain.parsers_differ
    }
    for step in steps:
        job = step.job
        if step.verdict != "run" or step.recipe is None or not isinstance(job, PartitionJob):
            continue
        toolchain = by_release.get((job.toolchain, job.toolchain_version))
        if toolchain is None:
            continue
        locked_parser = stand_in_of(step.recipe)
        available_parser = None if toolchain.stand_in is None else key_fields.fields_of(toolchain.stand_in)
        if (None if locked_parser is None else dict(locked_parser)) == available_parser:
            continue
        # The step is locked, because without a lock a machine plans partition steps only with the parser that it has.
        raise EnvironmentFault(
            f"{step.id} has to run again ({step.reason.text}), and {LOCK_FILE} contains its result with the parser of "
            f"{_parser_text(locked_parser, job)}; this machine has the parser of {_parser_text(available_parser, job)}",
            hint="build it on a machine with that parser, or without --force; "
            f"or replace the locked result: {UPGRADE_COMMANDS}",
        )


def _parser_text(stand_in: Mapping[str, object] | None, job: PartitionJob) -> str:
    name, version = (
        (job.toolchain, job.toolchain_version) if stand_in is None else (stand_in["toolchain"], stand_in["version"])
    )
    return f"{name} {version}"


def check_releases(model: Model, facts: Facts) -> None:
    """Raise EnvironmentFault if the toolchain of a target lacks a feature that the model needs."""
    for target, toolchain in facts.toolchains.items():
        try:
            table.check_release(target, model.builder, toolchain.version, model.precisions.names)
        except EnvironmentFault as error:
            place_of_target(error, model, target)
            raise


def check_targets(
    models: Mapping[str, Model],
    engines: Sequence[tuple[str, Target]],
    facts: Mapping[str, Facts],
    *,
    on_workers: bool = False,
) -> None:
    """Raise EnvironmentFault if the toolchains of this machine cannot build all `engines`: (name of a model, target).

    With `on_workers`, the workers of a scheduler build the engines. Then the check assumes that these workers have the
    planned toolchain and a GPU of each target."""
    devices = device_sms() if engines and not on_workers else ()
    for model, target in engines:
        version = table.installed_version(target.toolchain)
        try:
            planned = facts[model].toolchains[target].version
            if on_workers:
                settings, sms = models[model].builder, (target.sm,)
                table.check_target(target, settings, planned, devices=sms, host=target.platform)
                continue
            if target.version is None and version != planned:
                raise _locked_version_missing(target, planned, version)
            table.check_target(target, models[model].builder, version, devices=devices)
        except EnvironmentFault as error:
            place_of_target(error, models[model], target)
            raise


def _locked_version_missing(target: Target, planned: str, version: str | None) -> ToolchainMissing:
    actual = f"{version} is" if version is not None else "it is not"
    distribution = table.FLAVOURS[target.toolchain].distribution
    return ToolchainMissing(
        f"an engine for target {target.name!r} has to be built, and {LOCK_FILE} requires {target.toolchain} {planned}; "
        f"{actual} installed",
        hint=f"pip install '{distribution}=={planned}'; or use the installed version: {UPGRADE_COMMANDS}",
    )
