"""The errors of trtbuild, with the exit statuses of the commands that end with them.

An error has the exit status of its base class, if the tree does not name another.

* TrtbuildError, exit 1
  * UsageError, exit 2
    * ManifestErrors
    * ConfigurationError
      * ConfigurationErrors
    * LockFileError
    * EnvironmentFault
      * ToolchainMissing
      * TargetUnsupported
  * InterruptError, exit 130
  * FrozenError, exit 3
  * SourceError
  * ConversionRefused
  * ToolchainError
    * PluginError
  * OperatorMismatch
  * NotCompared
  * VerificationFailed
  * PackageError
    * PackageMissing
    * PackageDamaged
    * LinkRefused
    * PackageTooNew
    * PluginsNotLoaded
    * OperatorMissing
    * NoFittingTarget
    * CallRefused, also a ValueError
    * EngineError
  * InsufficientResources
  * WorkersError
    * NoWorker
    * SchedulerLost
  * InternalError
    * InconsistentShapes
  * StoreError
    * BlobMissing
    * EntryCorrupt
    * RecordUntrusted
    * BundleRefused
    * StoreUnavailable
    * RemoteFault
      * RemoteRefused
      * RemoteDown
      * RemoteFull
      * RemoteLied

The text of an error states the problem and the allowed values. `file`, `line` and `column` are its place, and `hint` says
what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class TrtbuildError(Exception):
    """Base class of all errors that are shown to the user without a traceback."""

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
        #: The output of the worker process that raised the error.
        self.worker_log = ""
        #: The path of the worker's log file, relative to the project.
        self.log_file: str | None = None

    def where(self) -> str:
        """The place as ``file:line:column``, without the unknown parts."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        place = self.where()
        message = f"{place}: {self.text}" if place else self.text
        if self.hint:
            message += f"\n  → {self.hint}"
        return f"{message}\n  log: {self.log_file}" if self.log_file else message


class UsageError(TrtbuildError):
    """A mistake in the command line, a manifest or the configuration, or an unfit machine, found before any work."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a manifest. `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        message = f"{self.file}:{self.line}:{self.column}: {self.text}"
        return f"{message}\n  → {self.hint}" if self.hint else message


class ManifestErrors(UsageError):
    """All problems of all manifests, as `problems`, in the order of files and lines.

    `files` are the manifests and the files that they name, also those that could not be read, as far as they are known."""

    def __init__(self, problems: Sequence[Problem], files: Sequence[str] = ()) -> None:
        self.files = tuple(files)
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.text)))
        first = self.problems[0]
        super().__init__(first.text, file=first.file, line=first.line, column=first.column, hint=first.hint)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class ConfigurationError(UsageError):
    """The configuration of the user or of CI (a file, or an environment variable) is not valid, or lacks an entry."""


class ConfigurationErrors(ConfigurationError):
    """All problems of a configuration, as `problems`."""

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.text, file=first.file, line=first.line, column=first.column, hint=first.hint)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class LockFileError(UsageError):
    """``trtbuild.lock`` cannot be read, or contradicts the manifest."""


class EnvironmentFault(UsageError):
    """Something that is needed is missing on this machine, or is not permitted."""


class ToolchainMissing(EnvironmentFault):
    """A toolchain or a library such as torch or onnxruntime is not installed, or has another version than needed.

    If there is a hint, it begins with a pip command."""


class TargetUnsupported(EnvironmentFault):
    """The toolchain cannot build for a requested target on this machine, or with a setting of the model."""


class InterruptError(TrtbuildError):
    """Ctrl-C or SIGTERM has ended the command."""

    exit_code = 130  # as shells do for SIGINT: 128 + 2


class FrozenError(TrtbuildError):
    """With `--frozen`, a step would have to run, a result is not the locked one, or an output cannot be read from a cache.

    `warnings` are possible reasons why a cache does not have a result."""

    exit_code = 3

    def __init__(self, text: str, *, hint: str, warnings: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.warnings = list(dict.fromkeys(warnings))


class SourceError(TrtbuildError):
    """The user's model cannot be imported, called or exported, or its export or its weights cannot be used.

    It is also raised if a file of the model changed during the build.

    `code` names the broken rule. `field` is the field of the manifest that causes the error, as a name in
    `trtbuild.core.model.spec.Model.places`, or None."""

    def __init__(
        self,
        text: str,
        *,
        code: str = "source",
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(text, file=file, line=line, hint=hint)
        self.code = code
        self.field = field


class ConversionRefused(TrtbuildError):
    """A piece of a graph cannot be converted to ONNX, or the toolchain's parser refuses it.

    `nodes` are the refused nodes, by their index among the piece's call_function nodes. The tuple is empty if they are
    unknown.
    """

    def __init__(self, text: str, *, hint: str | None = None, nodes: Sequence[int] = ()) -> None:
        super().__init__(text, hint=hint)
        self.nodes = tuple(nodes)


class ToolchainError(TrtbuildError):
    """The compiler refused a network or a setting, or a worker process died.

    `log` has the lines of TensorRT's log or, if a worker process raised the error, of this worker's log. `nodes` has the
    names of the refused ONNX nodes."""

    def __init__(self, text: str, *, hint: str | None = None, log: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.log = tuple(log)
        self.nodes: tuple[str, ...] = ()


class PluginError(ToolchainError):
    """The library of a model's plugins cannot be used, lacks a plugin, or has one with unexpected results.

    The fake implementation of a plugin's operator declares the types and sizes of the results."""


class PackageError(TrtbuildError):
    """A package cannot be loaded or used, or a call does not fit it."""


class PackageMissing(PackageError):
    """There is no package or ``.pt2`` file at the path, or it is not readable."""


class PackageDamaged(PackageError):
    """A package is truncated or altered, has no valid index, or has an engine that does not fit its index."""


class LinkRefused(PackageError):
    """A symbolic link leads out of a package, and the caller has not allowed to follow such links."""


class PackageTooNew(PackageError):
    """A package has a newer format than this version of trtbuild can read."""


class PluginsNotLoaded(PackageError):
    """A package has a library of TensorRT plugins, and the caller has not allowed loading it."""


class OperatorMissing(PackageError):
    """A package calls an operator from outside PyTorch that cannot be used in this process.

    The operator is not registered, has another schema, or has no kernel for the CPU."""


class NoFittingTarget(PackageError):
    """A package has no target with the requested name or for this machine, or lacks a needed reference program.

    It is also raised if the requested GPU does not exist."""


class CallRefused(PackageError, ValueError):
    """The tensors of a call, or those of a new state, do not fit: number, names, dtype, shape or device."""


class EngineError(PackageError):
    """TensorRT or CUDA refuses to load or run an engine, or the engine's results do not fit the package.

    The text contains the library's message, if there is one."""


class OperatorMismatch(TrtbuildError):
    """An operator from outside PyTorch returns another type or other sizes than its fake implementation declares."""


class InsufficientResources(TrtbuildError):
    """The disk or the memory of this machine is too small for the weights or the outputs of a model."""


class NotCompared(TrtbuildError):
    """The engines of a target cannot be compared with the reference, for example because no worker has a fitting GPU.

    The text has the reason. `trtbuild verify` then lists the target as not run."""


class VerificationFailed(TrtbuildError):
    """The results of a build differ from those of PyTorch or onnxruntime, or could not be compared with them."""


class StoreError(TrtbuildError):
    """An error of the store, of a bundle, or of the disk to which outputs are written.

    A lookup treats some of these errors as a miss."""


class BlobMissing(StoreError):
    """A blob or a record that is needed is not in the store."""


class EntryCorrupt(StoreError):
    """The content of an entry does not match its name, or cannot be parsed.

    A local store moves such an entry to its quarantine."""


class StoreUnavailable(StoreError):
    """The store cannot be used: permissions, a full disk, a newer format, or a directory that is not a cache."""


class RecordUntrusted(StoreError):
    """A record is not used, because no trusted key has signed it, or because the lock file names another record."""


class BundleRefused(StoreError):
    """A file for import is truncated, altered, or not a bundle. The text says whether some of its records were imported."""


class RemoteFault(StoreError):
    """A request to a remote failed. Such an error never ends a build, and its text contains no secrets."""


class RemoteRefused(RemoteFault):
    """The remote refuses this user or this kind of request, or its URL is wrong. A retry does not help.

    Examples are 401, 403, 405, missing credentials, a redirect to another host, and a store that is only for reading."""


class RemoteDown(RemoteFault):
    """The remote is unreachable or too slow, has an internal error, or the connection was lost.

    `is_transient` says whether a retry may help soon. It is true, for example, after a broken connection, 429 or
    503, and false after a time-out or for an unknown host. `retry_after_s` is the delay in seconds for which the remote
    asked.
    """

    def __init__(
        self, text: str, *, is_transient: bool = False, retry_after_s: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(text, hint=hint)
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


class RemoteFull(RemoteFault):
    """The object is too large for the remote (413), or the remote has no space (507)."""


class RemoteLied(RemoteFault):
    """The remote's response has a wrong length or digest, or is not what was requested (for example an HTML page)."""


class WorkersError(TrtbuildError):
    """The workers of a scheduler could not do a step or a comparison, or a worker cannot join the scheduler."""


class NoWorker(WorkersError):
    """No worker has the toolchain, the GPU and the store of the step or comparison."""


class SchedulerLost(WorkersError):
    """The connection to the scheduler was lost during a build or a verification."""


class InternalError(TrtbuildError):
    """A bug of trtbuild. If it raised another exception, the text contains the traceback."""

    def __init__(
        self, text: str, *, hint: str | None = "this is a bug of trtbuild: please report it", **place: Any
    ) -> None:
        super().__init__(text, hint=hint, **place)


class InconsistentShapes(InternalError):
    """The output of a step has other sizes, types or values than the traced program. The output is not kept.

    docs/keys.md has the rule. These modules check it: `trtbuild.stages.program.consistency`,
    `trtbuild.stages.verify.lowered` and `trtbuild.toolchain.compiling.declared`.
    """

    def __init__(
        self,
        text: str,
        *,
        hint: str
        | None = "no result was kept, because the engine would be wrong: please report it, with the model. Until "
        "it is fixed, `partition: {torch_executed_ops: [OPERATOR]}` may keep the operator in PyTorch",
        **place: Any,
    ) -> None:
        super().__init__(text, hint=hint, **place)
