"""Write the snapshot that `trtbuild.null_build` compares. The docstring of that module has the rules.

A snapshot contains the identity of everything that the output of a command depends on, and the output itself. The identity
of a file is its size, times and inode. Times alone do not prove that a file has the expected content. So a snapshot is
written only under these conditions:

* The digest of a file is the expected one. It comes from `FileDigests.known_digests`, whose entries are valid until the
  next edit. If there is no such entry, the file is read now, and its last change must be at least one tick of the clock
  before the read.
* Listings are read again, between two reads of the directory's identity. Links are read again, too.
* trtbuild's own sources and the directories of ``sys.path`` were last changed before this process started. The same holds
  for the directories of the cache in the snapshot of a plan.

If one of these conditions is not met, no snapshot is written, and the next build makes the whole plan.
"""

# Paths are strings here: there are thousands of them, and the snapshot has to contain them exactly as they are.
# ruff: noqa: PTH100, PTH115, PTH116

from __future__ import annotations

import datetime
import math
import os
import stat
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trtbuild import null_build
from trtbuild.atomic import replace_file
from trtbuild.core.planning import locks
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import Build, Plan
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.project import wiring
from trtbuild.driver.project.outcome import Outcome
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.stages.trace.user_code.observe import HIDDEN
from trtbuild.store.digests.fingerprint import FileDigests

#: The resolution of change times: a tick of the kernel is at most 10 ms (this is twice that), and FAT has 2 s.
_FINE_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000

#: A placeholder for the duration in the printed text. It is exact in binary, and has the three decimals that are shown.
_PLACEHOLDER_S = 987.625

_EPOCH = datetime.date(1970, 1, 1)

#: The number of snapshots that are kept in a project, one for each command line.
_MAX_SNAPSHOTS = 32


class Unsettled(Exception):
    """A condition is not met, so no snapshot can be written."""


def keep(
    workspace: Workspace,
    result: BuildResult,
    arguments: list[str],
    render: Callable[[Build], str],
    extra_files: Iterable[str] = (),
) -> bool:
    """Write the snapshot of a build. Return whether it was written.

    `render` returns the text that is printed for the document of a build. `extra_files` are files that were written
    in addition to the outputs.
    """
    plans = result.outcome.plans
    uncacheable = [ran for _, ran in result.outcome.ran.values() if ran.uncacheable]
    if not result.ok or uncacheable or workspace.request.force:
        return False
    unchanged = [replace(written, changed=False) for written in result.written]
    remote_warnings = workspace.store.warnings()  # the next build does not use remotes
    warnings = [text for text in result.warnings if text not in remote_warnings]
    document = report.build_document(
        replace(result, outcome=Outcome(plans), written=unchanged, warnings=warnings, remotes=[])
    )
    text = _with_placeholder(render(replace(document, duration_s=_PLACEHOLDER_S)))
    if text and null_build.DURATION_PLACEHOLDER not in text:
        return False
    return _keep(workspace, plans, arguments, text, extra_files)


def keep_plan(
    workspace: Workspace,
    plans: Mapping[str, ModelPlan],
    document: Plan,
    arguments: list[str],
    render: Callable[[Plan], str],
) -> bool:
    """Write the snapshot of a plan that has nothing to run, and for which no remote was needed.

    Returns whether it was written. `render` returns the text that is printed for a plan.
    """
    all_local = all(step.verdict == "hit" and step.source == "local" for step in document.steps)
    if not document.ok or not all_local or document.warnings or workspace.request.force:
        return False
    text = render(replace(document, duration_s=_PLACEHOLDER_S, remotes=[]))
    return _keep(workspace, plans, arguments, _with_placeholder(text), (), reads_cache=True)


def _keep(
    workspace: Workspace,
    plans: Mapping[str, ModelPlan],
    arguments: list[str],
    text: str,
    extra_files: Iterable[str],
    *,
    reads_cache: bool = False,
) -> bool:
    """Write a snapshot with the output `text`. Return whether it was written.

    `reads_cache` is whether the output depends on the entries of the local cache.
    """
    try:
        rows = _SnapshotRows(workspace, plans, extra_files)
        if reads_cache:
            rows.add_cache()
        _write_snapshot(workspace.project / null_build.SNAPSHOT_FOLDER, arguments, rows.to_bytes(arguments, text))
    except (Unsettled, OSError, ValueError, OverflowError, BlobMissing, EntryCorrupt):
        return False
    return True


def _with_placeholder(text: str) -> str:
    """Return `text` with a placeholder for the duration `_PLACEHOLDER_S`. The text of a plan for people has no duration."""
    # in JSON the duration comes first, and in text it comes last
    split = text.partition if text.startswith('{"schema"') else text.rpartition
    before, separator, after = split(str(_PLACEHOLDER_S))
    return before + null_build.DURATION_PLACEHOLDER + after if separator else text


class _SnapshotRows:
    """Collects the rows of a snapshot. Raises Unsettled."""

    def __init__(self, workspace: Workspace, plans: Mapping[str, ModelPlan], extra_files: Iterable[str]) -> None:
        self._workspace = workspace
        self._project = str(workspace.project)
        #: The identities of files, and of directories whose entries must not change.
        self.identities: dict[str, list[int]] = {}
        self.links: dict[str, str] = {}
        #: The inode of each directory that must exist, or 0 if the inode may change.
        self.directories: dict[str, int] = {}
        self.absent: set[str] = set()
        self.variables: dict[str, str] = {}
        self._add_trtbuild_and_python()
        self._add_configuration()
        self._add_manifests()
        for plan in plans.values():
            self._add_model(plan)
        for path in extra_files:
            self._add_file(os.path.abspath(path), None)
        root = self._snapshot_name(str(wiring.store_root(workspace.project)))
        for directory in (root, os.path.join(root, "ac")):
            self.directories[directory] = os.stat(self._path(directory)).st_ino

    def add_cache(self) -> None:
        """Add the directories of the local cache. Adding or removing an entry changes the times of its directory."""
        root = wiring.store_root(self._workspace.project)
        for kind in ("ac", "cas"):
            with os.scandir(root / kind) as entries:
                shards = [entry.path for entry in entries if entry.is_dir()]
            for path in (str(root / kind), *shards):
                self._add_settled(self._snapshot_name(path), os.stat(path))

    def to_bytes(self, arguments: list[str], text: str) -> bytes:
        """Return the file of the snapshot, which `null_build._read` describes.

        Raises OverflowError if the identity of a file has more than 64 bits."""
        lists = [
            [word for row in self.variables.items() for word in row],
            list(self.identities),
            [word for row in self.links.items() for word in row],
            list(self.directories),
            sorted(self.absent),
        ]
        _require(all(word for words in lists for word in words))
        sizes, mtimes_ns, ctimes_ns, inodes = zip(*self.identities.values(), strict=True)
        names = os.fsencode("\0\0".join("\0".join(words) for words in lists))
        output = text.encode("utf-8", "surrogateescape")
        head = f"{null_build.call_line(os.getcwd(), arguments)}\n{self._expiry_s()} {len(names)} {len(output)}\n"  # noqa: PTH109
        signed = array("q", [*sizes, *mtimes_ns, *ctimes_ns])
        unsigned = array("Q", [*inodes, *self.directories.values()])
        return b"".join((head.encode("ascii"), names, output, signed.tobytes(), unsigned.tobytes()))

    def _path(self, name: str) -> str:
        return os.path.join(self._project, name)

    def _snapshot_name(self, path: str) -> str:
        """Return a path as the snapshot has it: relative for files in the project, so that the project can be moved."""
        prefix = self._project + os.sep
        return path[len(prefix) :] if path.startswith(prefix) else path

    def _add_trtbuild_and_python(self) -> None:
        for path in source_files(os.path.dirname(null_build.__file__)):
            self._add_settled(path, os.stat(path))
        for entry in null_build.interpreter()[2:]:
            path = os.path.abspath(entry)
            try:
                status = os.stat(path)
            except FileNotFoundError:
                self.absent.add(path)
                continue
            self._add_settled(path, status)

    def _add_configuration(self) -> None:
        """Add the configuration file, which may be missing, and the signing keys."""
        configuration = self._workspace.configuration
        if configuration.trust.signing_key_file is not None:
            self._add_file(str(configuration.trust.signing_key_file), None)
        if self._workspace.store.local.trust.enforced:
            self._add_machine_key()
        if configuration.sha256 is not None:
            self._add_file(str(configuration.path), configuration.sha256)
        elif configuration.path is not None and configuration.path != os.devnull:
            _require(not os.path.lexists(configuration.path))
            self.absent.add(configuration.path)

    def _add_machine_key(self) -> None:
        """Add the key of this machine: records that are signed with it are trusted as long as it exists."""
        from trtbuild.driver.configuration.user_keys import machine_key_path  # only where keys are configured

        path = machine_key_path(os.environ)
        if path is not None and path.exists():
            self._add_file(str(path), None)
        elif path is not None:
            self.absent.add(str(path))

    def _expiry_s(self) -> float:
        """Return the time when the next trusted key expires, in seconds since the epoch; infinity if no key expires."""
        days = [key.expires for key in self._workspace.configuration.trust.keys if key.expires is not None]
        expiries = [(day - _EPOCH).days * 86400.0 + 86400.0 for day in days]
        return min((expiry for expiry in expiries if expiry > time.time()), default=math.inf)

    def _add_manifests(self) -> None:
        for name, digest in self._workspace.manifests.items():
            self._add_file(name, digest)
        lock_file = self._workspace.lock_file
        if lock_file is not None:
            self._add_file(locks.LOCK_FILE, lock_file.sha256)
        elif not self._workspace.request.upgrade:
            self.absent.add(locks.LOCK_FILE)
            _require(not os.path.lexists(self._path(locks.LOCK_FILE)))
        if self._workspace.request.files:
            return
        if "trtbuild.yaml" not in self._workspace.manifests:
            self.absent.add("trtbuild.yaml")
            self._add_settled("manifests", os.stat(self._path("manifests")))

    def _add_model(self, plan: ModelPlan) -> None:
        for observation in plan.observations:
            self._add_observation(observation.dependency, observation.state)
        weights = plan.model.weights
        if weights is not None:
            self._add_file(weights, self._workspace.lookups.files.weights_digests[weights])
        if plan.plugin_library is not None and plan.model.plugins is not None:
            self._add_file(str(plan.model.plugins.library), plan.plugin_library.sha256)
        package = plan.package
        if package is None or package.record is None:
            raise Unsettled
        for _, _, files in self._workspace.files_of(plan.model, package.record):
            self._add_files({file.path: file.sha256 for file in files})

    def _add_observation(self, dependency: Dependency, seen: str) -> None:
        kind, name = dependency.kind, dependency.name
        if kind == "environment" and name.startswith(HIDDEN):
            return  # user code does not see it; `null_build.own_variables` compares it for trtbuild itself
        if kind == "environment":
            self.variables[name] = seen
        elif kind == "link":
            self._add_link(dependency, seen)
        elif seen == ABSENT and kind != "distribution":
            self.absent.add(name)
            _require(not os.path.lexists(self._path(name)))
        elif kind == "listing":
            self._add_listing(dependency, seen)
        elif kind == "file" and seen == DIRECTORY:
            self.directories.setdefault(name, 0)
        elif kind == "file":
            self._add_file(name, seen)

    def _add_file(self, name: str, expected: str | None) -> None:
        """Add a file that must have the digest `expected`. With None, any content is accepted."""
        self._add_files({name: expected})

    def _add_files(self, expected_digests: Mapping[str, str | None]) -> None:
        """Add files by name. Several files take only one lookup in the index."""
        paths = {name: self._path(name) for name in expected_digests if name not in self.identities}
        known = self._workspace.digests.known_digests(paths.values())
        for name, path in paths.items():
            self._add_identity(name, _verified_stat(path, expected_digests[name], known.get(path)))

    def _add_listing(self, dependency: Dependency, seen: str) -> None:
        path = self._path(dependency.name)
        status = os.stat(path)
        _require(_is_settled(status, time.time_ns()) and self._workspace.lookups.observe_now(dependency) == seen)
        self._add_identity(dependency.name, status)
        self._add_identity(dependency.name, os.stat(path))

    def _add_settled(self, name: str, status: os.stat_result) -> None:
        """Add a file or directory that was last changed before this process started."""
        _require(_is_settled(status, null_build.STARTED_NS))
        self._add_identity(name, status)

    def _add_identity(self, name: str, status: os.stat_result) -> None:
        identity = null_build.identity(status)
        _require(self.identities.setdefault(name, identity) == identity)

    def _add_link(self, dependency: Dependency, seen: str) -> None:
        target = os.readlink(self._path(dependency.name))
        _require(self._workspace.lookups.observe_now(dependency) == seen)
        self.links[dependency.name] = target


def _verified_stat(path: str, expected: str | None, known: tuple[str, os.stat_result] | None) -> os.stat_result:
    """Return the stat of a file with the digest `expected`. Each later edit changes this stat. Raises Unsettled.

    `known` is the result of `FileDigests.known_digests` for the file."""
    if known is not None and known[0] == expected:
        return known[1]
    status, now_ns = os.stat(path), time.time_ns()
    _require(stat.S_ISREG(status.st_mode))
    if not _is_settled(status, now_ns):
        _require(_tick_ns(status) == _FINE_TICK_NS)
        time.sleep(2 * _FINE_TICK_NS / 1e9)
        status, now_ns = os.stat(path), time.time_ns()
        _require(_is_settled(status, now_ns))
    _require(expected is None or FileDigests(None).sha256(path) == expected)
    after = os.stat(path)
    _require(null_build.identity(after) == null_build.identity(status))
    return after


def _is_settled(status: os.stat_result, at_ns: int) -> bool:
    """Whether every change after the time `at_ns` gives the file another change time."""
    return status.st_ctime_ns + _tick_ns(status) <= at_ns


def _tick_ns(status: os.stat_result) -> int:
    """Return the resolution of a file's change time, in nanoseconds."""
    return _COARSE_TICK_NS if status.st_ctime_ns % 1_000_000 == 0 else _FINE_TICK_NS


def _require(certain: bool) -> None:
    if not certain:
        raise Unsettled


def source_files(folder: str) -> Iterator[str]:
    """Yield the Python files of trtbuild."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from source_files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path


def _write_snapshot(folder: Path, arguments: list[str], snapshot: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / null_build.snapshot_name(os.getcwd(), arguments), snapshot, mode=0o600)  # noqa: PTH109
    snapshots = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in snapshots[_MAX_SNAPSHOTS:]:
        path.unlink(missing_ok=True)
