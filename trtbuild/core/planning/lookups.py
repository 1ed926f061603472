"""The input of planning: facts about the machine (`Facts`), and lookups in stores and in the project (`Lookups`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.model.stand_in import StandInParser
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.declared import UserCodeStage
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record


@dataclass(frozen=True)
class ToolchainFacts:
    """The facts that planning needs about a target's toolchain.

    `version` is the toolchain's exact version. `opset` is the opset of the ONNX models for its parser. `workspace` is the
    workspace in bytes if the manifest does not set it; None if the library chooses it."""

    version: str
    opset: int
    workspace: int | None = None
    #: The parser that this machine uses if the toolchain's own parser cannot run here, or None.
    stand_in: StandInParser | None = None
    #: Whether the toolchain's own parser needs a GPU. Then some machines use it, and others use a stand-in.
    parsers_differ: bool = False
    #: Whether this machine has a parser for the toolchain.
    has_parser: bool = True
    #: Whether the toolchain's engines compute int64 values in 32 bits. Then a partition has only int64 values that fit.
    narrows_int64: bool = False


@dataclass(frozen=True)
class LockedSteps:
    """The entries of a lock file about a model's calibrate, trace and partition steps.

    `versions` are the versions of torch and related packages with which the trace was made. `calibration_key` is None
    without a calibrate step."""

    trace_key: str | None
    versions: Mapping[str, str]
    partition_keys: tuple[str, ...] = ()
    calibration_key: str | None = None

    def key_of(self, stage: UserCodeStage) -> str | None:
        return self.trace_key if stage == "trace" else self.calibration_key


@dataclass(frozen=True)
class Facts:
    """The facts about this machine for planning one model.

    `versions` are the versions of python, torch, onnx, onnx-ir and onnxscript. They are None if one of these is not
    installed, or if the lock file names other versions for the model. Then this machine cannot trace the model.
    `environment` has the fixed environment variables of engine workers, which are in the keys of engines. `locked_steps` is
    None if no lock file has the model."""

    platform: str
    versions: Mapping[str, str] | None
    toolchains: Mapping[Target, ToolchainFacts]
    environment: Mapping[str, str]
    locked_steps: LockedSteps | None = None
    #: Target → the SMs (GPU architectures) for which its engines have code. A target without an entry has its own SM only.
    sms: Mapping[Target, tuple[int, ...]] = field(default_factory=dict)


class Lookups(Protocol):
    """The lookups that planning makes in the store, the project and the machine."""

    def record(self, key: str) -> Record | None:
        """The record under a key, from the local cache or a remote, or None."""

    def record_of(self, recipe: Recipe) -> Record | None:
        """The record under the key of `recipe`, or None. The caller checks that the record has that recipe."""

    def source_of(self, key: str) -> str:
        """The origin of the record under `key`: ``local``, or a remote's name."""

    def blob(self, sha256: str) -> bytes:
        """The bytes of a small blob. Raises BlobMissing or EntryCorrupt."""

    def has_blob(self, sha256: str) -> bool:
        """Whether a blob is available."""

    def observe(self, dependency: Dependency) -> str:
        """The current state of a dependency, such as the digest of a file (`core.recipes.dependency`)."""

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        """The dependencies that the link with this recipe names (`core.recipes.chain`). None if there is no such link."""

    def later_dependencies(self, link: Recipe) -> Sequence[Dependency]:
        """The dependencies that the links after `link` will probably name (`core.recipes.chain`, rule 6).

        The result may be empty if fetching links together saves no time."""

    def last_recipe(self, step: str) -> Recipe | None:
        """The recipe of the step with this id in the last build of this project, or None."""

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        """Name → weight of the model's weights file; None if the model has no weights file."""

    def plugin_library(self, model: Model, versions: Mapping[Target, str]) -> Output | None:
        """The library of the model's plugins; None if the model has no such library.

        `versions` are those of the toolchains. Raises ManifestErrors for a file that cannot be the library for the model's
        targets."""

    def why_forced_to_run(self, step: str, key: str) -> Reason | None:
        """The reason why the step runs even if it has a record (``--force``, not cacheable), or None."""

    def announced_recipe(self, step: str) -> Recipe | None:
        """The recipe of the step with this id, if the step still runs and plans already use its results. Otherwise None."""

    def was_run(self, step: str) -> bool:
        """Whether this command has run the step with this id. If so, another run would give the same outputs."""

    def why_unusable(self, key: str) -> Reason | None:
        """The reason why the entry under a key must not be used: it is damaged or not trusted.

        None if the entry may be used, or if there is no entry."""

    def prefetch(self, recipes: Callable[[], Iterable[Recipe]]) -> None:
        """Fetch the records of these recipes together, before they are looked up, if this saves time.

        `recipes` is called only in that case."""
