"""What ``trtbuild.lock`` says, as values: the keys and digests of a release.

Rules (docs/lock.md for users; the file's form is `core.planning.lockfile`)
1. A lock names, for every model, each step by id with its key, and of engines and packages the digests and sizes of what
   they left. So it says which bytes belong to a release, and under which keys they are found.
2. Beside that it says what the keys were planned with: torch-side versions of every model, toolchain and version of every
   target. These are what is planned with from then on. The platform, the versions of trtbuild's own steps and the digests
   of manifests stand there for people: they explain a difference, and decide nothing.
3. What the lock does not know (a model, a target, a key) is as without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.recipes.record import Output, Record

#: The file, at the project's root.
NAME = "trtbuild.lock"

#: Stage → those of its outputs whose digests are locked. The `layers` of an engine only describe its plan.
LOCKED_OUTPUTS: Mapping[str, Sequence[str]] = {"engine": ("plan",), "package": ("index", "names")}


@dataclass(frozen=True)
class LockedStep:
    """The key of one step, and the outputs of it that are locked."""

    key: str
    outputs: Mapping[str, Output] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(output.size for output in self.outputs.values())


@dataclass(frozen=True)
class LockedTarget:
    """What a target's engines are built with: the toolchain's flavour, and its exact version."""

    toolchain: ToolchainName
    version: str


@dataclass(frozen=True)
class LockedModel:
    """One model: torch-side versions by name, targets by name, steps by id."""

    versions: Mapping[str, str]
    targets: Mapping[str, LockedTarget]
    steps: Mapping[str, LockedStep]

    @property
    def trace(self) -> str | None:
        """The key of the trace."""
        return next((step.key for name, step in self.steps.items() if stage_of(name) == "trace"), None)


@dataclass(frozen=True)
class Lock:
    """A whole lock file."""

    platform: str
    step_versions: Mapping[str, int]
    manifests: Mapping[str, str]
    models: Mapping[str, LockedModel]
    #: As it was read, for the places in messages.
    text: str = field(default="", compare=False, repr=False)

    @cached_property
    def steps(self) -> Mapping[str, LockedStep]:
        """Every step by id."""
        return {name: step for model in self.models.values() for name, step in model.steps.items()}

    @cached_property
    def by_key(self) -> Mapping[str, LockedStep]:
        """Every locked key. Steps that share one leave the same."""
        return {step.key: step for step in self.steps.values()}

    def refusal(self, key: str, record: Record) -> str | None:
        """Why `record`, which was found under `key`, is not the one of this lock; None where it is, and where the lock does
        not know the key."""
        locked = self.by_key.get(key)
        if locked is None:
            return None
        for name, output in locked.outputs.items():
            if record.outputs.get(name) != output:
                return f"its {name} is not the one that {NAME} names"
        return None


def stage_of(step: str) -> str:
    """``vit/engine/encoder@ada`` → ``engine``. A name of a model has no slash."""
    return step.partition("/")[2].partition("/")[0].partition("@")[0]


@dataclass(frozen=True)
class Difference:
    """One entry that two locks do not have alike. `area` is ``step``, ``version``, ``target``, … `was` and `now` are
    printable; None where that side has no such entry."""

    area: Literal["platform", "step version", "manifest", "version", "target", "step"]
    name: str
    was: str | None
    now: str | None

    @property
    def for_information(self) -> bool:
        """Whether it is about what decides nothing and explains no key: a manifest's bytes."""
        return self.area == "manifest"

    def to_json(self) -> dict[str, object]:
        change = "added" if self.was is None else "removed" if self.now is None else "changed"
        return {"area": self.area, "name": self.name, "change": change, "was": self.was, "now": self.now}


def differences(was: Lock | None, now: Lock) -> Iterator[Difference]:
    """All entries that differ: what explains others first."""
    if was is not None and was.platform != now.platform:
        yield Difference("platform", "platform", was.platform, now.platform)
    for area in ("step version", "manifest", "version", "target", "step"):
        before, after = _entries(was, area), _entries(now, area)
        for name in sorted({**before, **after}):
            if before.get(name) != after.get(name):
                yield Difference(area, name, before.get(name), after.get(name))


def _entries(lock: Lock | None, area: str) -> dict[str, str]:
    if lock is None:
        return {}
    models = lock.models.items()
    if area == "step version":
        return {name: str(version) for name, version in lock.step_versions.items()}
    if area == "manifest":
        return dict(lock.manifests)
    if area == "version":
        return {f"{name}: {part}": version for name, model in models for part, version in model.versions.items()}
    if area == "target":
        return {
            f"{name}@{target}": f"{entry.toolchain} {entry.version}"
            for name, model in models
            for target, entry in model.targets.items()
        }
    return {name: _said(step) for name, step in lock.steps.items()}


def _said(step: LockedStep) -> str:
    outputs = [f"{name} {output.sha256} ({output.size} bytes)" for name, output in sorted(step.outputs.items())]
    return ", ".join([f"key {step.key}", *outputs])
