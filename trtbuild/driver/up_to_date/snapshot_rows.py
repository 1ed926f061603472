"""Collect the contents of a snapshot: the state of everything that the output of a command depends on.

Rules
1. The digest of a file must be the expected one. If `FileDigests.known_digests` has this digest, the file is not read,
   because such a digest is valid until the next edit. Otherwise the file is read now, and its last change must be at least
   one tick of the clock before the read (`settled`). Signing keys and `extra_files` have no expected digest: they are not
   read, and their content may be any.
2. Listings are read again, between two reads of the directory's identity (size, times, inode). Symbolic links are read
   again, too. The snapshot also has which links in a listed directory lead to directories.
3. The last change of trtbuild's own sources and of the entries of ``sys.path`` must be before the start of this
   process. The same holds for the directory ``manifests``, and in the snapshot of a plan for the directories of the cache.
"""

# Paths are strings here, because there are thousands of them, and the snapshot has to contain them unchanged.
# ruff: noqa: PTH100, PTH114, PTH115, PTH116

from __future__ import annotations

import datetime
import math
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping

from trtbuild import null_build
from trtbuild.core.planning import locks
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.up_to_date.settled import Unsettled, is_settled, require, verified_stat
from trtbuild.stages.trace.user_code.observe import HIDDEN_PREFIXES

_EPOCH = datetime.date(1970, 1, 1)


class SnapshotRows:
    """Collects the contents of a snapshot. Raises Unsettled if a fact is not certain, and OSError if a read fails."""

    def __init__(self, workspace: Workspace, plans: Mapping[str, ModelPlan], extra_files: Iterable[str]) -> None:
        self._workspace = workspace
        self._project = str(workspace.project)
        #: Name → identity, of files and of directories whose entries must not change.
        self.identities: dict[str, list[int]] = {}
        #: Name of a symbolic link → its target.
        self.links: dict[str, str] = {}
        #: Name of a directory that must exist → its inode, or 0 if the inode may change.
        self.directories: dict[str, int] = {}
        #: Names of files that must not exist.
        self.absent: set[str] = set()
        #: Names of paths that must not be symbolic links.
        self.no_links: set[str] = set()
        #: Environment variable → its state (`Observation.state`).
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
        """Add the directories of the local cache, whose times change when an entry is added or removed."""
        root = wiring.store_root(self._workspace.project)
        for kind in ("ac", "cas"):
            with os.scandir(root / kind) as entries:
                shards = [entry.path for entry in entries if entry.is_dir()]
            for path in (str(root / kind), *shards):
                self._add_settled(self._snapshot_name(path), os.stat(path))

    def to_bytes(self, arguments: list[str], text: str) -> bytes:
        """Return the bytes of the snapshot's file. `null_build._read` describes the format.

        Raises OverflowError if a number in the identity of a file does not fit into 64 bits."""
        lists = [
            [word for row in self.variables.items() for word in row],
            list(self.identities),
            [word for row in self.links.items() for word in row],
            list(self.directories),
            sorted(self.absent),
            sorted(self.no_links),
        ]
        require(all(word for words in lists for word in words))  # an empty word would look like the end of a list
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
        """Return the path for the snapshot. Files of the project are relative, so that the project can be moved."""
        prefix = self._project + os.sep
        return path[len(prefix) :] if path.startswith(prefix) else path

    def _add_trtbuild_and_python(self) -> None:
        for path in source_files(os.path.dirname(null_build.__file__)):
            self._add_settled(path, os.stat(path))
        for entry in null_build.interpreter()[2:]:  # the entries of sys.path
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
        if self._workspace.store.local.trust.checks_signatures:
            self._add_machine_key()
        if configuration.sha256 is not None:
            self._add_file(str(configuration.path), configuration.sha256)
        elif configuration.path is not None and configuration.path != os.devnull:
            require(not os.path.lexists(configuration.path))
            self.absent.add(configuration.path)

    def _add_machine_key(self) -> None:
        """Add the key of this machine, because records that it signed are trusted while it exists."""
        from trtbuild.driver.configuration.user_keys import machine_key_path  # only where keys are configured

        path = machine_key_path(os.environ)
        if path is not None and path.exists():
            self._add_file(str(path), None)
        elif path is not None:
            self.absent.add(str(path))

    def _expiry_s(self) -> float:
        """Return when the next trusted key expires, in seconds since the epoch; infinity if no key is going to expire."""
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
            require(not os.path.lexists(self._path(locks.LOCK_FILE)))
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
        """Add what a trace has read. Distributions need no entry, because they are in the directories of ``sys.path``."""
        kind, name = dependency.kind, dependency.name
        if kind == "import":
            return  # the snapshot has ``sys.path``, and the identities of its directories
        if kind == "environment" and name.startswith(HIDDEN_PREFIXES):
            return  # user code cannot read this variable, and `null_build.call_line` has its digest
        if kind == "environment":
            self.variables[name] = seen
        elif kind == "link":
            self._add_link(dependency, seen)
        elif seen == ABSENT and kind != "distribution":
            self.absent.add(name)
            require(not os.path.lexists(self._path(name)))
        elif kind == "listing":
            self._add_listing(dependency, seen)
        elif kind == "file" and seen == DIRECTORY:
            self.directories.setdefault(name, 0)
        elif kind == "file":
            self._add_file(name, seen)

    def _add_file(self, name: str, expected: str | None) -> None:
        """Add a file with the digest `expected`. If `expected` is None, any content is accepted."""
        self._add_files({name: expected})

    def _add_files(self, expected_digests: Mapping[str, str | None]) -> None:
        """Add files, given as name → digest, with one lookup in the index of digests."""
        paths = {name: self._path(name) for name in expected_digests if name not in self.identities}
        known = self._workspace.digests.known_digests(paths.values())
        for name, path in paths.items():
            self._add_identity(name, verified_stat(path, expected_digests[name], known.get(path)))

    def _add_listing(self, dependency: Dependency, seen: str) -> None:
        path = self._path(dependency.name)
        status = os.stat(path)
        self._add_links_in(path)
        require(is_settled(status, time.time_ns()) and self._workspace.lookups.observe_now(dependency) == seen)
        self._add_identity(dependency.name, status)
        self._add_identity(dependency.name, os.stat(path))

    def _add_links_in(self, path: str) -> None:
        """Add which links in a listed directory lead to directories. The digest of the listing depends on this, but the
        identity of the directory does not."""
        with os.scandir(path) as entries:
            links = [entry for entry in entries if entry.is_symlink()]
        for link in links:
            name = self._snapshot_name(link.path)
            if link.is_dir():
                self.directories.setdefault(name, 0)
            else:
                self.absent.add(f"{name}/.")  # exists only if the link leads to a directory

    def _add_settled(self, name: str, status: os.stat_result) -> None:
        """Add a file or directory that was last changed before this process started."""
        require(is_settled(status, null_build.STARTED_NS))
        self._add_identity(name, status)

    def _add_identity(self, name: str, status: os.stat_result) -> None:
        identity = null_build.identity(status)
        require(self.identities.setdefault(name, identity) == identity)

    def _add_link(self, dependency: Dependency, seen: str) -> None:
        if seen == ABSENT:
            require(not os.path.islink(self._path(dependency.name)))
            self.no_links.add(dependency.name)
            return
        target = os.readlink(self._path(dependency.name))
        require(self._workspace.lookups.observe_now(dependency) == seen)
        self.links[dependency.name] = target


def source_files(folder: str) -> Iterator[str]:
    """Yield the paths of the Python files in `folder` and in its subfolders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from source_files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
