"""The errors of trtbuild with their exit statuses, grouped by their cause.

* TrtbuildError, the base class
  * UsageError, exit 2: found before any work
    * ManifestErrors: one or more problems of manifests (`problems`)
    * ConfigurationError: the configuration of the user or of CI is not valid, or lacks an entry
      * ConfigurationErrors: one or more problems of a configuration (`problems`)
    * LockFileError: trtbuild.lock cannot be read, or contradicts the manifest
    * EnvironmentFault: something that is needed is missing on this machine, or is not permitted
      * ToolchainMissing: a toolchain, torch or onnxruntime is not installed, or has another version than needed
      * TargetUnsupported: the toolchain cannot build for the target, or with a setting of the model
  * FrozenError, exit 3: `--frozen` was given, and a result is missing
  * SourceError, exit 1: the user's model cannot be imported, called or exported, or its export or weights cannot be used
  * ConversionRefused, exit 1: a piece of a graph that the converter or the parser refuses
  * ToolchainError, exit 1: the compiler refused a network or a setting, or its process died
    * PluginError: the library of a model's plugins cannot be used, lacks a plugin, or has one with unexpected results
  * OperatorMismatch, exit 1: an operator from outside PyTorch returns another type or other sizes than its fake
    implementation declares
  * NotCompared, exit 1: engines can run on a GPU, but the reference of a comparison cannot run; a verification lists the
    target as not run
  * VerificationFailed, exit 1: the results of a build differ from those of PyTorch, or could not be compared with them
  * PackageError, exit 1: a package cannot be loaded or used, or a call does not fit it
    * PackageMissing: the path has no package, or is not readable
    * PackageDamaged: the package is truncated or altered, has no valid index, or has an engine that does not fit it
    * LinkRefused: a symbolic link leads out of the package, and following such links was not allowed
    * PackageTooNew: the package has a newer format than this version of trtbuild can read
    * PluginsNotLoaded: the package has a library of TensorRT plugins, and loading it was not allowed
    * OperatorMissing: the package calls an operator from outside PyTorch that is not registered
    * NoFittingTarget: the package is for other GPUs, TensorRT versions or platforms, or has no reference program
    * CallRefused: the arguments of a call do not fit a loaded package (also a ValueError)
    * EngineError: TensorRT or CUDA refuses to load or run an engine, or the engine's results do not fit the package
  * InsufficientResources, exit 1: the disk or the memory is too small for the weights or the outputs of a model
  * WorkersError, exit 1: the workers of a scheduler could not do a step, or a worker cannot join the scheduler
    * NoWorker: no worker has the toolchain, the GPU and the store of the step or comparison
    * SchedulerLost: the connection to the scheduler was lost during a build or a verification
  * InternalError, exit 1: a bug of trtbuild
    * InconsistentShapes: the output of a step has other sizes, types or values than the traced program
  * StoreError, exit 1; some of these errors are handled as a miss
    * BlobMissing: a blob or a record that is needed is not in the store
    * EntryCorrupt: the content of an entry does not match its name, or cannot be parsed
    * RecordUntrusted: a record that no trusted key has signed, or that the lock file refuses
    * BundleRefused: a file for import is truncated, altered, or not a bundle
    * StoreUnavailable: the store cannot be used (permissions, full disk, newer format, not a cache)
    * RemoteFault: a request to a remote failed; such an error never ends a build
      * RemoteRefused: wrong credentials, no permission, or a wrong URL; a retry does not help
      * RemoteDown: unreachable, too slow, connection lost, or an error of the server
      * RemoteFull: the object is too large, or the remote has no space
      * RemoteLied: the content of the response is not what was requested

The text of an error states the problem, the place (`file`, `line`, `column`), the allowed values, and what to do (`hint`).
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
        #: The output of the worker that raised the error, and the path of the worker's log file, relative to the project.
        self.worker_log = ""
        self.log_file: str | None = None

    def where(self) -> str:
        """The place as ``file:line:column``, without the unknown parts; empty if no part is known."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        place = self.where()
        message = f"{place}: {self.text}" if place else self.text
        if self.hint:
            message += f"\n  → {self.hint}"
        return f"{message}\n  log: {self.log_file}" if self.log_file else message


class UsageError(TrtbuildError):
    """An error in the command line, a manifest or the machine, found before any work."""

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
    """All problems of all manifests that were read. `problems` are in the order of files and lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
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
    """A toolchain, torch or onnxruntime is not installed, or in another version than needed. If there is a hint, it begins
    with a pip command."""


class TargetUnsupported(EnvironmentFault):
    """The toolchain cannot build for a requested target on this machine, or with a setting of the model."""


class FrozenError(TrtbuildError):
    """A step would have to run, or an output cannot be read from a cache, but `--frozen` was given. `warnings` are possible
    reasons why a result was not found in a cache."""

    exit_code = 3

    def __init__(self, text: str, *, hint: str, warnings: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.warnings = list(dict.fromkeys(warnings))


class SourceError(TrtbuildError):
    """The user's model cannot be imported, called or exported, or its export is not reliable. `code` names the broken
    rule.

    `field` is the field of the manifest that causes the error, as a name in `trtbuild.core.model.spec.Model.places`, or
    None."""

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
    """A piece of a graph has no conversion, or the toolchain's parser refuses it.

    `nodes` are the indexes of the refused nodes among the piece's call_function nodes; empty if they are not known.
    """

    def __init__(self, text: str, *, hint: str | None = None, nodes: Sequence[int] = ()) -> None:
        super().__init__(text, hint=hint)
        self.nodes = tuple(nodes)


class ToolchainError(TrtbuildError):
    """The compiler refused a network or a setting, or its process died.

    `log` are the lines of the library's log. `nodes` are the names of the refused ONNX nodes."""

    def __init__(self, text: str, *, hint: str | None = None, log: Sequence[str] = ()) -> None:
        super().__init__(text, hint=hint)
        self.log = tuple(log)
        self.nodes: tuple[str, ...] = ()


class PluginError(ToolchainError):
    """The library of a model's plugins cannot be used, or it lacks a plugin, or a plugin has other results than the fake
    implementation of its operator declares."""


class PackageError(TrtbuildError):
    """A package cannot be loaded or used, or was called with wrong tensors."""


class PackageMissing(PackageError):
    """A path has no package or ``.pt2`` file, or is not readable."""


class PackageDamaged(PackageError):
    """A package is truncated or altered, has no valid index, or has an engine whose inputs or outputs differ from its
    index."""


class LinkRefused(PackageError):
    """A symbolic link in a package leads out of it. The link was not followed."""


class PackageTooNew(PackageError):
    """A package has a newer format than this version of trtbuild can read."""


class PluginsNotLoaded(PackageError):
    """A package has a library of TensorRT plugins, and the caller has not allowed loading it."""


class OperatorMissing(PackageError):
    """A package calls an operator from outside PyTorch that is not registered in this process, has another schema there, or
    has no kernel for the CPU."""


class NoFittingTarget(PackageError):
    """A package has no target with the requested name or for this machine's devices, or it lacks the reference program that
    is needed."""


class CallRefused(PackageError, ValueError):
    """The tensors of a call, or those of a new state, do not fit: number, names, dtype, shape or device."""


class EngineError(PackageError):
    """TensorRT or CUDA refuses to load or run an engine, or the results of the engine do not fit the package. The text has
    the library's message, if there is one."""


class OperatorMismatch(TrtbuildError):
    """An operator from outside PyTorch returns another type or other sizes than its fake implementation declares."""


class InsufficientResources(TrtbuildError):
    """The disk or the memory of this machine is too small for the weights or the outputs of a model."""


class NotCompared(TrtbuildError):
    """Engines can run on a GPU, but the reference for their comparison cannot run. The text has the reason."""


class VerificationFailed(TrtbuildError):
    """The results of a build differ from those of PyTorch, or could not be compared with them."""


class StoreError(TrtbuildError):
    """An error of the store, of a bundle, or of the disk to which outputs are written."""


class BlobMissing(StoreError):
    """A blob or a record that is needed is not in the store."""


class EntryCorrupt(StoreError):
    """The content of an entry does not match its name, or cannot be parsed. A local store moves such an entry to the
    quarantine."""


class StoreUnavailable(StoreError):
    """The store cannot be used: permissions, a full disk, a newer format, or a directory that is not a cache."""


class RecordUntrusted(StoreError):
    """A record is not used, because no trusted key has signed it, or because the lock file names another record."""


class BundleRefused(StoreError):
    """A file for import is truncated, altered, or not a bundle. The text says whether some of its records were imported."""


class RemoteFault(StoreError):
    """A request to a remote failed. The text contains no secrets."""


class RemoteRefused(RemoteFault):
    """The remote refuses this user or this kind of request (401, 403, 405, missing credentials, a redirect to another host,
    a store that is only for reading), or its URL is wrong. A retry does not help."""


class RemoteDown(RemoteFault):
    """The remote is unreachable or too slow, lost the connection, or has an internal error.

    `may_pass` says whether a retry may help soon. It is true after a reset, 429 or 5xx, and false after a time-out or for
    an unknown host. `retry_after_s` is the delay that the remote asked for, in seconds.
    """

    def __init__(
        self, text: str, *, may_pass: bool = False, retry_after_s: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(text, hint=hint)
        self.may_pass = may_pass
        self.retry_after_s = retry_after_s


class RemoteFull(RemoteFault):
    """The object is too large for the remote (413), or the remote has no space (507)."""


class RemoteLied(RemoteFault):
    """The remote's response has a wrong length or digest, or is not what was requested (for example an HTML page)."""


class WorkersError(TrtbuildError):
    """The workers of a scheduler could not do a step, or a worker cannot join the scheduler."""


class NoWorker(WorkersError):
    """No worker has the toolchain, the GPU and the store of the step or comparison."""


class SchedulerLost(WorkersError):
    """The connection to the scheduler was lost during a build or a verification."""


class InternalError(TrtbuildError):
    """A bug of trtbuild. If the bug raised another exception, the text contains its traceback."""

    def __init__(
        self, text: str, *, hint: str | None = "this is a bug of trtbuild: please report it", **place: Any
    ) -> None:
        super().__init__(text, hint=hint, **place)


class InconsistentShapes(InternalError):
    """The output of a step has other sizes, types or values than the traced program. The output is not kept.

    docs/keys.md has the rule. `trtbuild.stages.program.consistency`, `trtbuild.stages.verify.lowered` and
    `trtbuild.toolchain.compiling.declared` check outputs.
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
