"""What planning knows of the machine (`Facts`), and what it asks of the world (`Lookups`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.model.stand_in import StandIn
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record


@dataclass(frozen=True)
class ToolchainFacts:
    """What a target's toolchain contributes to recipes: its exact version, the ONNX opset that it takes, and the workspace
    (bytes) that no `workspace` setting means there; None where the library decides by nothing but itself."""

    version: str
    opset: int
    workspace: int | None = None
    #: The parser that is asked here in place of the toolchain's own, which cannot run here.
    stand_in: StandIn | None = None
    #: Whether one that was asked elsewhere may have been another: the toolchain's own, or a stand-in.
    parsers_differ: bool = False
    #: Whether there is a parser here that can be asked.
    can_ask: bool = True
    #: Whether its engines compute int64 values in 32 bits, so that only those are cut for it that 32 bits hold.
    narrows_int64: bool = False


@dataclass(frozen=True)
class LockedTrace:
    """What a lock file says of a model's trace: its key, and the torch-side versions that it was made with; and the keys
    of its partition steps."""

    key: str | None
    versions: Mapping[str, str]
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What this machine contributes to one model. `versions` (torch, onnx, onnxscript, python) is None where torch is
    missing, and where it is not the one that the model is `locked` to: this machine cannot trace it then."""

    platform: str
    versions: Mapping[str, str] | None
    toolchains: Mapping[Target, ToolchainFacts]
    environment: Mapping[str, str]  # what engine workers get
    locked: LockedTrace | None = None
    #: The SMs that a plan for a target holds code for; the target's own where it is not said.
    sms: Mapping[Target, tuple[int, ...]] = field(default_factory=dict)


class Lookups(Protocol):
    """Everything that planning asks of the world."""

    def record(self, key: str) -> Record | None:
        """The record under a key, wherever it is."""

    def record_of(self, recipe: Recipe) -> Record | None:
        """The record under the key of `recipe`. It need not be of that recipe."""

    def source_of(self, key: str) -> str:
        """Where that record came from: ``local``, or a remote's name."""

    def blob(self, sha256: str) -> bytes:
        """A small blob's bytes. Raises BlobMissing or EntryCorrupt."""

    def has(self, sha256: str) -> bool:
        """Whether a blob is there."""

    def observe(self, dependency: Dependency) -> str:
        """What there is to see of a dependency now."""

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        """The dependencies that a link of the chain names."""

    def ahead(self, link: Recipe) -> Sequence[Dependency]:
        """The dependencies that a link which was read is said to be followed by, when that is worth knowing (`chain`)."""

    def last_recipe(self, step: str) -> Recipe | None:
        """The recipe that the step of this id last had, in this project."""

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        """Name → weight of the model's weights file; None when it has none."""

    def overruled(self, step: str, key: str) -> Reason | None:
        """Why the step has to run whatever the records say (``--force``, not cacheable), or None."""

    def was_run(self, step: str) -> bool:
        """Whether the step of this id was run by this command: what it left is what it leaves."""

    def unusable(self, key: str) -> Reason | None:
        """Why what lies under a key is no record to go by: damaged, or nobody vouches for it. None: nothing lies there."""

    def expect(self, recipes: Callable[[], Iterable[Recipe]]) -> None:
        """A hint: the records of these recipes will be asked for next. They are worked out only where that saves time."""
