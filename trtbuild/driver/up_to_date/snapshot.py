"""Writing what `trtbuild.null_build` goes by (its rules are there): all that an answer depends on, and the answer.

A row is written for content that was looked at, so nothing here trusts a time stamp alone:

* a file's digest is the wanted one, by `FileDigests.known` (which holds only what no edit leaves as it is), or by
  reading it now, after its times have become older than the clock can tell apart;
* listings and links are looked at again, between two looks at the directory's times;
* trtbuild's own sources and the directories of ``sys.path`` were last changed before this process started.

Where any of this does not hold there is no standing, and the next build makes the whole plan.
"""

# Paths are strings here: they come by the thousand, and are looked at again in the spelling that is written.
# ruff: noqa: PTH100, PTH115, PTH116

from __future__ import annotations

import contextlib
import datetime
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild import null_build
from trtbuild.core.planning import locks
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency
from trtbuild.driver.answers import report
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building.executor import Outcome
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.stages.trace.user_code.observe import HIDDEN
from trtbuild.store.digests.fingerprint import FileDigests

#: The clocks of file systems: a tick of the kernel (10 ms at most), or where time stamps are coarser than that, FAT's.
_FINE_NS = 20_000_000
_COARSE_NS = 2_000_000_000

#: Stands for a duration while an answer is made: exact in binary, and with the three digits that are shown.
_ODD_S = 987.625

_EPOCH = datetime.date(1970, 1, 1)

#: How many command lines of a project are remembered.
_KEPT = 32


class Unsettled(Exception):
    """Something is not certain: no standing can be written."""


def keep(
    workspace: Workspace,
    result: BuildResult,
    arguments: list[str],
    answer: Callable[[report.Document], str],
    extra: Iterable[str] = (),
) -> bool:
    """Write the standing of a build by which everything is up to date now. Returns whether it could be written.

    `answer` makes what is printed of a build's document; `extra` are files that were written beside the outputs.
    """
    plans = result.outcome.plans
    kept_out = [ran for _, ran in result.outcome.ran.values() if ran.uncacheable]
    if not result.ok or kept_out or workspace.request.force:
        return False
    nothing_new = [replace(written, changed=False) for written in result.written]
    of_remotes = workspace.store.warnings()  # which the next build does not ask
    warnings = [text for text in result.warnings if text not in of_remotes]
    document = report.build_document(
        replace(result, outcome=Outcome(plans), written=nothing_new, warnings=warnings, remotes=[])
    )
    try:
        standing = _Rows(workspace, plans, extra).standing(arguments)
        text = _with_placeholder(answer, document)
        _write(workspace.project / null_build.FOLDER, standing, text)
    except (Unsettled, OSError, ValueError, BlobMissing, EntryCorrupt):
        return False
    return True


def _with_placeholder(answer: Callable[[report.Document], str], document: report.Document) -> str:
    """The answer, with a mark where it says how long it took."""
    text = answer({**document, "duration_s": _ODD_S})
    split = text.partition if text.startswith('{"schema"') else text.rpartition  # where nothing can come between
    before, found, after = split(str(_ODD_S))
    if text and not found:
        raise Unsettled
    return before + null_build.DURATION + after if text else ""


class _Rows:
    """What is compared, in the form in which it is written. Raises Unsettled."""

    def __init__(self, workspace: Workspace, plans: Mapping[str, ModelPlan], extra: Iterable[str]) -> None:
        self._workspace = workspace
        self._project = str(workspace.project)
        self.files: dict[str, list[int]] = {}
        self.listings: dict[str, list[int]] = {}
        self.links: dict[str, str | None] = {}
        self.directories: dict[str, int] = {}
        self.absent: set[str] = set()
        self.variables: dict[str, str] = {}
        self._program()
        self._configuration()
        self._manifests()
        for plan in plans.values():
            self._model(plan)
        for path in extra:
            self._file(os.path.abspath(path), None)
        root = self._name(str(wiring.store_root(workspace.project)))
        for place in (root, os.path.join(root, "ac")):
            self.directories[place] = os.stat(self._path(place)).st_ino

    def standing(self, arguments: list[str]) -> dict[str, Any]:
        """The document, but for what an answer adds."""
        return {
            "format": null_build.FORMAT,
            "directory": os.getcwd(),  # noqa: PTH109
            "arguments": arguments,
            "interpreter": null_build.interpreter(),
            "own": null_build.own_variables(),
            "until_s": self._until_s(),
            "looks": null_build.looks(),
            "variables": self.variables,
            "files": [[path, *identity] for path, identity in self.files.items()],
            "listings": [[path, *identity] for path, identity in self.listings.items()],
            "links": list(self.links.items()),
            "directories": list(self.directories.items()),
            "absent": sorted(self.absent),
        }

    def _path(self, name: str) -> str:
        return os.path.join(self._project, name)

    def _name(self, path: str) -> str:
        """As it is written: relative to the project where it is inside, so that a project may move."""
        inside = self._project + os.sep
        return path[len(inside) :] if path.startswith(inside) else path

    def _program(self) -> None:
        for path in _sources(os.path.dirname(null_build.__file__)):
            found = os.stat(path)
            _need(_settled(found, null_build.STARTED_NS))
            self.files[path] = null_build.identity(found)
        for entry in null_build.interpreter()[2:]:
            path = os.path.abspath(entry)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                self.absent.add(path)
                continue
            _need(_settled(found, null_build.STARTED_NS))
            if stat.S_ISDIR(found.st_mode):
                self.listings[path] = null_build.directory_identity(found)
            else:
                self.files[path] = null_build.identity(found)

    def _configuration(self) -> None:
        """The file that remotes and trust come from: as it was read, or still not there. And the keys that sign."""
        configuration = self._workspace.configuration
        if configuration.trust.signing_key_file is not None:
            self._file(str(configuration.trust.signing_key_file), None)
        if self._workspace.store.local.trust.enforced:
            self._machine_key()
        if configuration.sha256 is not None:
            self._file(str(configuration.path), configuration.sha256)
        elif configuration.path is not None and configuration.path != os.devnull:
            _need(not os.path.lexists(configuration.path))
            self.absent.add(configuration.path)

    def _machine_key(self) -> None:
        """The key that counts on this machine alone: what it vouched for counts as long as it is there."""
        from trtbuild.driver.configuration.user_keys import machine_key_path  # only where keys are configured

        path = machine_key_path(os.environ)
        if path is not None and path.exists():
            self._file(str(path), None)
        elif path is not None:
            self.absent.add(str(path))

    def _until_s(self) -> float | None:
        """When the first of the trusted keys that count now does not any more, in seconds since the epoch."""
        days = [key.expires for key in self._workspace.configuration.trust.keys if key.expires is not None]
        ends = [(day - _EPOCH).days * 86400.0 + 86400.0 for day in days]
        return min((end for end in ends if end > time.time()), default=None)

    def _manifests(self) -> None:
        for name, digest in self._workspace.manifests.items():
            self._file(name, digest)
        lock_file = self._workspace.lock_file
        if lock_file is not None:
            self._file(locks.NAME, lock_file.sha256)
        elif not self._workspace.request.upgrade:
            self.absent.add(locks.NAME)
            _need(not os.path.lexists(self._path(locks.NAME)))
        if self._workspace.request.files:
            return
        if "trtbuild.yaml" not in self._workspace.manifests:
            self.absent.add("trtbuild.yaml")
            found = os.stat(self._path("manifests"))
            _need(_settled(found, null_build.STARTED_NS))
            self.listings["manifests"] = null_build.directory_identity(found)

    def _model(self, plan: ModelPlan) -> None:
        for seen in plan.observations:
            self._observed(seen.dependency, seen.seen)
        weights = plan.model.weights
        if weights is not None:
            self._file(weights, self._workspace.look.weights_digests[weights])
        package = plan.package
        if package is None or package.record is None:
            raise Unsettled
        for _, _, files in self._workspace.files_of(plan.model, package.record):
            for file in files:
                self._file(file.path, file.sha256)

    def _observed(self, dependency: Dependency, seen: str) -> None:
        kind, name = dependency.kind, dependency.name
        if kind == "environment" and name.startswith(HIDDEN):
            return  # never seen by user code; for trtbuild itself it is compared with all of its own variables
        if kind == "environment":
            self.variables[name] = seen
        elif kind == "link":
            self._link(dependency, seen)
        elif seen == ABSENT and kind != "distribution":
            self.absent.add(name)
            _need(not os.path.lexists(self._path(name)))
        elif kind == "listing":
            self._listing(dependency, seen)
        elif kind == "file" and seen == DIRECTORY:
            self.directories.setdefault(name, 0)
        elif kind == "file":
            self._file(name, seen)

    def _file(self, name: str, wanted: str | None) -> None:
        """One file with the digest that it has to have; None: whatever it has now."""
        if name not in self.files:
            self.files[name] = null_build.identity(_looked_at(self._path(name), wanted, self._workspace.digests))

    def _listing(self, dependency: Dependency, seen: str) -> None:
        path = self._path(dependency.name)
        before = os.stat(path)
        _need(_settled(before, time.time_ns()) and self._workspace.look.observe_now(dependency) == seen)
        self.listings[dependency.name] = null_build.directory_identity(before)
        _need(null_build.directory_identity(os.stat(path)) == self.listings[dependency.name])

    def _link(self, dependency: Dependency, seen: str) -> None:
        try:
            target: str | None = os.readlink(self._path(dependency.name))
        except OSError:
            target = None
        _need(self._workspace.look.observe_now(dependency) == seen)
        self.links[dependency.name] = target


def _looked_at(path: str, wanted: str | None, digests: FileDigests) -> os.stat_result:
    """The stat of a file while it has the digest `wanted`, which no later edit leaves as it is."""
    known = digests.known(path)
    if known is not None and known[0] == wanted:
        return known[1]
    found, now = os.stat(path), time.time_ns()
    _need(stat.S_ISREG(found.st_mode))
    if not _settled(found, now):
        _need(_clock_ns(found) == _FINE_NS)
        time.sleep(2 * _FINE_NS / 1e9)
        found, now = os.stat(path), time.time_ns()
        _need(_settled(found, now))
    _need(wanted is None or FileDigests(None).sha256(path) == wanted)
    after = os.stat(path)
    _need(null_build.identity(after) == null_build.identity(found))
    return after


def _settled(found: os.stat_result, at_ns: int) -> bool:
    """Whether what is changed from the time `at_ns` on gets another change time."""
    return found.st_ctime_ns + _clock_ns(found) <= at_ns


def _clock_ns(found: os.stat_result) -> int:
    """How far apart two changes are, at least, that have different change times."""
    return _COARSE_NS if found.st_ctime_ns % 1_000_000 == 0 else _FINE_NS


def _need(certain: bool) -> None:
    if not certain:
        raise Unsettled


def _sources(folder: str) -> Iterator[str]:
    """The Python files of trtbuild."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path


def _write(folder: Path, standing: Mapping[str, Any], text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps({**standing, "length": len(text)}, separators=(",", ":"))
    descriptor, fresh = tempfile.mkstemp(dir=folder, prefix=".fresh-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{head}\n{text}".encode("utf-8", "surrogateescape"))
        Path(fresh).replace(folder / null_build.name_of(standing["directory"], standing["arguments"]))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)  # noqa: PTH108
        raise
    known = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in known[_KEPT:]:
        path.unlink(missing_ok=True)
