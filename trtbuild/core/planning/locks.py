"""The contents of ``trtbuild.lock``, as values: the keys and digests of a release.

Rules (for users: docs/lock.md; the form of the file: `core.planning.lockfile`)
1. For every model, a lock has the id and key of each step. For engines and packages it also has the digests and sizes of
   the outputs in `LOCKED_OUTPUTS`. So a lock names the bytes of a release, and the keys under which they are stored.
2. A lock also has the versions with which the keys were planned: for every model the versions of torch and related
   packages, for every target the toolchain and its version. Later plans use these versions.
3. A lock also has the platform, the versions of trtbuild's own steps, and the digests of manifests. They do not change any
   plan. The platform and the versions of steps explain why keys differ. The digests of manifests are for information only.
4. For a model, target or key that is not in the lock, a plan is the same as without a lock file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.recipes.record import Output, Record

#: The name of the file, in the project's root directory.
LOCK_FILE = "trtbuild.lock"

#: Stage → the outputs whose digests are in the lock. The output `layers` of an engine is not among them, because it only
#: describes the engine's plan (its bytes).
LOCKED_OUTPUTS: Mapping[str, Sequence[str]] = {"engine": ("plan",), "package": ("index", "names")}


@dataclass(frozen=True)
class LockedStep:
    """The key of one step, and its locked outputs."""

    key: str
    outputs: Mapping[str, Output] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(output.size for output in self.outputs.values())


@dataclass(frozen=True)
class LockedTarget:
    """The toolchain that builds a target's engines, and its exact version."""

    toolchain: ToolchainName
    version: str


@dataclass(frozen=True)
class LockedModel:
    """One model: versions of torch and related packages by name, targets by name, steps by id."""

    versions: Mapping[str, str]
    targets: Mapping[str, LockedTarget]
    steps: Mapping[str, LockedStep]

    def key_of(self, stage: str) -> str | None:
        """The key of the model's first step of `stage`, or None if the lock has no such step."""
        return next((step.key for name, step in self.steps.items() if stage_of(name) == stage), None)


@dataclass(frozen=True)
class Lock:
    """A whole lock file."""

    platform: str
    step_versions: Mapping[str, int]
    manifests: Mapping[str, str]
    models: Mapping[str, LockedModel]
    #: The text of the file, for line numbers in messages.
    text: str = field(default="", compare=False, repr=False)

    @cached_property
    def steps(self) -> Mapping[str, LockedStep]:
        return {name: step for model in self.models.values() for name, step in model.steps.items()}

    @cached_property
    def by_key(self) -> Mapping[str, LockedStep]:
        """Key → locked step. Steps with the same key have the same outputs."""
        return {step.key: step for step in self.steps.values()}

    def refusal(self, key: str, record: Record) -> str | None:
        """The reason why `record`, which was found under `key`, contradicts this lock; None if it does not."""
        locked = self.by_key.get(key)
        if locked is None:
            return None
        for name, output in locked.outputs.items():
            if record.outputs.get(name) != output:
                return f"its {name} differs from {LOCK_FILE}"
        return None


def stage_of(step: str) -> str:
    """The stage of a step's id: ``vit/engine/encoder@ada`` → ``engine``. Model names have no slash."""
    return step.partition("/")[2].partition("/")[0].partition("@")[0]


Area = Literal["platform", "step version", "manifest", "version", "target", "step"]


@dataclass(frozen=True)
class Difference:
    """An entry that differs between two locks. `was` and `now` are its two values as text.

    None stands for a lock without the entry."""

    area: Area
    name: str
    was: str | None
    now: str | None

    @property
    def is_informational(self) -> bool:
        """Whether the difference is only shown: another digest of a manifest does not make a lock out of date."""
        return self.area == "manifest"

    @property
    def change(self) -> Literal["added", "removed", "changed"]:
        return "added" if self.was is None else "removed" if self.now is None else "changed"


def differences(was: Lock | None, now: Lock) -> Iterator[Difference]:
    """All entries that differ. Entries that explain others come first.

    `was` is None if there is no earlier lock. Then every entry of `now` except the platform is a difference."""
    if was is not None and was.platform != now.platform:
        yield Difference("platform", "platform", was.platform, now.platform)
    for area in ("step version", "manifest", "version", "target", "step"):
        before, after = _entry_texts(was, area), _entry_texts(now, area)
        for name in sorted({**before, **after}):
            if before.get(name) != after.get(name):
                yield Difference(area, name, before.get(name), after.get(name))


def _entry_texts(lock: Lock | None, area: str) -> dict[str, str]:
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
    return {name: _step_text(step) for name, step in lock.steps.items()}


def _step_text(step: LockedStep) -> str:
    outputs = [f"{name} {output.sha256} ({output.size} bytes)" for name, output in sorted(step.outputs.items())]
    return ", ".join([f"key {step.key}", *outputs])
