"""Every exception of trtbuild, by whose fault it is.

    TrtbuildError
    ├── UsageError               exit 2: found before any work
    │   ├── ManifestErrors       one or more problems of manifests (`problems`)
    │   ├── ConfigurationError   the user's or CI's configuration: remotes, keys, policy
    │   ├── LockFileError        trtbuild.lock cannot be read, or contradicts the manifest
    │   └── EnvironmentFault     something that must be installed or allowed on this machine
    │       ├── ToolchainMissing    a toolchain or torch is not installed
    │       └── TargetUnsupported   no toolchain here builds for the target
    ├── FrozenError              exit 3: `--frozen`, and something is missing
    ├── SourceError              exit 1: the user's model (import, call, export, freezing, weights)
    ├── ConversionRefused        exit 1: a piece that no converter or parser takes
    ├── ToolchainError           exit 1: the compiler refused or died
    ├── VerificationFailed       exit 1: what was built is not what PyTorch computes
    ├── PackageError             exit 1: a package cannot be loaded, or a call does not fit it
    │   ├── PackageMissing          there is no package
    │   ├── PackageDamaged          truncated, altered, or no package's index
    │   ├── LinkRefused             a symbolic link in it leads out of it, and nobody has said that such links are followed
    │   ├── PackageTooNew           of a format that this trtbuild does not know
    │   ├── NoFittingTarget         for other GPUs, another TensorRT or another platform; or it has no reference program
    │   ├── CallRefused             what a loaded package was called with does not fit it (a ValueError too)
    │   └── EngineError             TensorRT refuses to load or run an engine; the text has its words
    ├── InternalError            exit 1: a bug of trtbuild
    │   └── InconsistentShapes      a step has left other sizes or types than the traced model has; nothing is kept
    └── StoreError               exit 1, or a miss where a miss is right
        ├── BlobMissing             named, but not there
        ├── EntryCorrupt            there, but not what its name says
        ├── RecordUntrusted         there, and nobody who is trusted vouches for it
        ├── BundleRefused           a file that is to be imported is cut off, altered, or no bundle
        ├── StoreUnavailable        the place itself cannot be used (permissions, full disk, newer format)
        └── RemoteFault             a remote did not do what was asked; by itself never the end of a build
            ├── RemoteRefused          credentials or permission: asking again does not help
            ├── RemoteDown             out of reach, too slow, broken off, an error of the server
            ├── RemoteFull             it takes nothing that large, or nothing more
            └── RemoteLied             what it sent is not what was asked for

An error says what, where (`file`, `line`, `column`), what is allowed and what to do next (`hint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class TrtbuildError(Exception):
    """Base of all errors that a user is shown without a traceback."""

    exit_code = 1

    def __init__(
        self,
        text: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.file = file
        self.line = line
        self.column = column
        self.hint = hint
        #: What the worker printed while it met this, and the file that keeps it (relative to the project).
        self.worker_log = ""
        self.log_file: str | None = None

    def where(self) -> str:
        """``file:line:column`` as far as it is known, else the empty string."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        place = self.where()
        message = f"{place}: {self.text}" if place else self.text
        if self.hint:
            message += f"\n  → {self.hint}"
        return f"{message}\n  log: {self.log_file}" if self.log_file else message


class UsageError(TrtbuildError):
    """A wrong command line, manifest or machine; found before any work."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a manifest, at a place."""

    file: str
    line: int
    column: int
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        message = f"{self.file}:{self.line}:{self.column}: {self.text}"
        return f"{message}\n  → {self.hint}" if self.hint else message


class ManifestErrors(UsageError):
    """All problems of all manifests that were read, at once (`problems`, in file and line order)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.text)))
        first = self.problems[0]
        super().__init__(first.text, file=first.file, line=first.line, column=first.column, hint=first.hint)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class ConfigurationError(UsageError):
    """The user's or CI's configuration (a file, or a variable of the environment) cannot be read."""


class ConfigurationErrors(ConfigurationError):
    """All problems of a configuration, at once (`problems`)."""

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.text, file=first.file, line=first.line, column=first.column, hint=first.hint)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class LockFileError(UsageError):
    """``trtbuild.lock`` cannot be read, or says something else than the manifest."""


class EnvironmentFault(UsageError):
    """This machine lacks something, or forbids something."""


class ToolchainMissing(EnvironmentFault):
    """A toolchain, or torch, is not installed; the hint is the pip command."""


class TargetUnsupported(EnvironmentFault):
    """No toolchain on this machine builds for a target that was asked for."""


class FrozenError(TrtbuildError):
    """`--frozen`, and something would have to be built. `warnings` say why it was perhaps not found."""

    exit_code = 3

    def __init__(self, text: str, *, hint: str, warnings: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.warnings = list(dict.fromkeys(warnings))


class SourceError(TrtbuildError):
    """The user's model cannot be imported, called, exported or trusted. `code` names the rule that it broke."""

    def __init__(
        self,
        text: str,
        *,
        code: str = "source",
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(text, file=file, line=line, hint=hint)
        self.code = code


class ConversionRefused(TrtbuildError):
    """A piece of a graph has no translation, or the toolchain's parser refuses it.

    `nodes` are the indexes of the refused nodes among the piece's call_function nodes, as far as they are known.
    """

    def __init__(self, text: str, *, hint: str | None = None, nodes: Sequence[int] = ()) -> None:
        super().__init__(text, hint=hint)
        self.nodes = tuple(nodes)


class ToolchainError(TrtbuildError):
    """The compiler refused a network, or its process died. `log` is all that the library said, line by line; `nodes` are
    the names of ONNX nodes that it refused."""

    def __init__(self, text: str, *, hint: str | None = None, log: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.log = tuple(log)
        self.nodes: tuple[str, ...] = ()


class PackageError(TrtbuildError):
    """A package cannot be loaded or run."""


class PackageMissing(PackageError):
    """There is no package at a path."""


class PackageDamaged(PackageError):
    """A package is truncated or altered, or has no valid index. Nothing of it was deserialized or run."""


class LinkRefused(PackageError):
    """A symbolic link in a package leads out of it. Nothing behind it was read."""


class PackageTooNew(PackageError):
    """A package of a newer format than this trtbuild reads."""


class NoFittingTarget(PackageError):
    """A package has nothing that runs on the device that was found or named."""


class CallRefused(PackageError, ValueError):
    """The tensors of a call do not fit: number, names, dtype, shape or device."""


class EngineError(PackageError):
    """TensorRT, or CUDA, refuses to load or run an engine. The text has its words."""


class VerificationFailed(TrtbuildError):
    """What was built is not what PyTorch computes, or could not be compared with it."""


class StoreError(TrtbuildError):
    """Something about the store."""


class BlobMissing(StoreError):
    """A blob that a record names is not in the store."""


class EntryCorrupt(StoreError):
    """An entry is there, but is not what its name says; it was moved to quarantine."""


class StoreUnavailable(StoreError):
    """The store's place cannot be used: permissions, a full disk, a newer format."""


class RecordUntrusted(StoreError):
    """A record is there, and no signature on it counts. The text says why not."""


class BundleRefused(StoreError):
    """A file that is to be imported is cut off, altered, or no bundle. Nothing of it was used."""


class RemoteFault(StoreError):
    """A remote did not do what was asked of it. The text names no secret."""


class RemoteRefused(RemoteFault):
    """The remote refuses this user (401, 403, 405, a redirect elsewhere): asking again does not help."""


class RemoteDown(RemoteFault):
    """The remote is out of reach, too slow, broke off, or met an error of its own.

    `may_pass` says whether asking again soon may help (a reset, 429, 5xx), as it hardly does after a time-out or where
    there is no such host. `retry_after_s` is what the remote asked for.
    """

    def __init__(
        self, text: str, *, may_pass: bool = False, retry_after_s: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(text, hint=hint)
        self.may_pass = may_pass
        self.retry_after_s = retry_after_s


class RemoteFull(RemoteFault):
    """The remote takes nothing that large (413), or nothing more (507)."""


class RemoteLied(RemoteFault):
    """What the remote sent has a wrong length, a wrong digest, or is nothing that was asked for (a page of HTML)."""


class InternalError(TrtbuildError):
    """A bug of trtbuild. The text has the traceback."""

    def __init__(
        self, text: str, *, hint: str | None = "this is a bug of trtbuild: please report it", **place: Any
    ) -> None:
        super().__init__(text, hint=hint, **place)


class InconsistentShapes(InternalError):
    """What a step has left does not have the sizes or types of what was traced. Nothing of it is kept.

    The rule is in docs/keys.md; `trtbuild.stages.program.guard` and `trtbuild.toolchain.compiling.declared` hold the steps
    to it.
    """

    def __init__(
        self,
        text: str,
        *,
        hint: str
        | None = "nothing was kept, for an engine would have been wrong: please report it, with the model. Until "
        "then `partition: {torch_executed_ops: [OPERATOR]}` may keep the operator in PyTorch",
        **place: Any,
    ) -> None:
        super().__init__(text, hint=hint, **place)
