"""Checks of a local store: `verify` reads every byte, `stats` counts entries and bytes.

`verify` checks CAS files (the files in ``cas/``) first, then the entries in ``ac/``: chunk lists, then records. So it also
finds the lists and records that name a damaged file. It does not mark entries as used. Builds may write entries
meanwhile: a file or a list that an entry names, and that was not there when the folder was listed, is checked when the
entry is. While a collection runs, `verify` may report that a file is missing, because the collection has just removed it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import is_entry_of
from trtbuild.store.local.layout import Kind, list_folder
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import DOCUMENT_PATH, ActionResult, list_key


@dataclass(frozen=True)
class Damage:
    """One damaged entry."""

    kind: Literal["blob", "chunk list", "record"]
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.text}"


@dataclass(frozen=True)
class VerifyReport:
    """The numbers of checked entries and bytes, and the damage that was found."""

    records: int
    lists: int  # chunk lists
    blobs: int  # CAS files
    bytes_read: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True)
class Stats:
    """The contents of a store in numbers."""

    #: Stage → number of records.
    records: Mapping[str, int]
    #: The number of different blobs that records name.
    blobs: int
    #: The number of different chunks that entries name.
    chunks: int
    #: The total size of the outputs of all records. A blob counts once for each record that names it.
    logical_bytes: int
    #: The total size of the files of all entries.
    stored_bytes: int
    #: The space that these files take on the disk (as `du` counts).
    allocated_bytes: int
    quarantine_entries: int
    quarantine_bytes: int

    @property
    def dedup_ratio(self) -> float:
        """Logical bytes per stored byte."""
        return self.logical_bytes / self.stored_bytes if self.stored_bytes else 1.0


def verify(store: LocalStore, *, quarantine: bool = True) -> VerifyReport:
    """Read all entries and compare their contents with their names. With `quarantine`, move damaged entries to quarantine.

    Raises StoreUnavailable.
    """
    return _Verification(store, quarantine).run()


class _Verification:
    def __init__(self, store: LocalStore, quarantine: bool) -> None:
        self._entries = store.entries
        self._quarantine = quarantine
        self._damage: list[Damage] = []
        self._bytes_read = 0
        self._sizes: dict[str, int] = {}  # undamaged CAS file → its size
        self._read_keys: set[str] = set()  # the keys of all entries that were read
        self._lists: dict[str, int] = {}  # blob with an undamaged chunk list → the blob's size

    def run(self) -> VerifyReport:
        actions: dict[str, ActionResult] = {}
        cas = [name for name, _ in self._entries.layout.entries("cas")]
        for name in cas:
            self._check_cas(name)
        for key, _ in self._entries.layout.entries("ac"):
            self._read_keys.add(key)
            action = self._read_action(key)
            if action is not None:
                actions[key] = action
        lists = {key for key, action in actions.items() if action.document is None}
        for key in lists:
            self._check_list(key, actions[key])
        for key in actions.keys() - lists:
            self._check_record(key, actions[key])
        return VerifyReport(len(actions) - len(lists), len(lists), len(cas), self._bytes_read, tuple(self._damage))

    def _read(self, kind: Kind, name: str) -> bytes | None:
        """The bytes of an entry. None if it does not exist, or is not a regular file. Reading a device might never end."""
        with suppress(OSError):  # then `read` gives the error
            if not stat.S_ISREG(os.lstat(self._entries.layout.entry_path(kind, name)).st_mode):
                return None
        data = self._entries.read(kind, name)
        self._bytes_read += len(data or b"")
        return data

    def _read_action(self, key: str) -> ActionResult | None:
        """The entry under a key. None if it does not exist, or is invalid, which is reported."""
        data = self._read("ac", key)
        if data is None:
            return None
        try:
            action = ActionResult.from_bytes(data)
            action.blobs()  # raises ValueError for an invalid table of blobs
        except ValueError as error:
            self._report_damage("record", "ac", key, str(error))
            return None
        return action

    def _report_damage(
        self, entry_kind: Literal["blob", "chunk list", "record"], kind: Kind, name: str, text: str
    ) -> None:
        self._damage.append(Damage(entry_kind, name, text))
        if self._quarantine:
            self._entries.quarantine(kind, name, text)

    def _check_cas(self, name: str) -> None:
        data = self._read("cas", name)
        if data is None:
            return
        if hashlib.sha256(data).hexdigest() == name:
            self._sizes[name] = len(data)
        else:
            self._report_damage("blob", "cas", name, "its bytes have another SHA-256")

    def _is_undamaged(self, file: Output) -> bool:
        """Whether a CAS file exists with the right bytes and the size of `file`."""
        if self._sizes.get(file.sha256) != file.size:
            # A build may have written the file since the folder was listed, or since the file was found to be damaged.
            data = self._read("cas", file.sha256)
            if data is not None and hashlib.sha256(data).hexdigest() == file.sha256:
                self._sizes[file.sha256] = len(data)
        return self._sizes.get(file.sha256) == file.size

    def _check_list(self, key: str, action: ActionResult) -> None:
        blobs = action.blobs()
        if len(blobs) != 1 or list_key(next(iter(blobs))) != key:
            self._report_damage("record", "ac", key, "it is neither a record nor a chunk list")
            return
        ((sha256, chunks),) = blobs.items()
        content_hash = hashlib.sha256()
        for chunk in chunks:
            data = self._read("cas", chunk.sha256) if self._is_undamaged(chunk) else None
            if data is None:
                self._report_damage("chunk list", "ac", key, f"blob {sha256} lacks chunk {chunk.sha256}")
                return
            content_hash.update(data)
        if content_hash.hexdigest() != sha256:
            self._report_damage("chunk list", "ac", key, f"its chunks are not blob {sha256}")
            return
        self._lists[sha256] = sum(chunk.size for chunk in chunks)

    def _check_new_list(self, key: str) -> None:
        """Check a chunk list that a build has written since the folder was listed, if there is one."""
        if key not in self._read_keys:
            self._read_keys.add(key)
            action = self._read_action(key)
            if action is not None:
                self._check_list(key, action)

    def _check_record(self, key: str, action: ActionResult) -> None:
        text = self._record_damage(key, action)
        if text is not None:
            self._report_damage("record", "ac", key, text)

    def _record_damage(self, key: str, action: ActionResult) -> str | None:
        """The damage of a record as text, or None."""
        for path, file in action.files:
            if not self._is_undamaged(file):
                return f"it lacks {file.sha256} ({path})"
        document = action.document
        assert document is not None  # entries without a document are checked by `_check_list`
        try:
            record = Record.from_bytes(self._read("cas", document.sha256) or b"")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return f"{DOCUMENT_PATH} is not a record: {error}"
        if not is_entry_of(key, record.recipe.key, action.signatures):
            return "it is the record of another key"
        blobs = action.blobs()
        for name, output in record.outputs.items():
            if output.sha256 not in self._sizes:
                self._check_new_list(list_key(output.sha256))
            if self._sizes.get(output.sha256, self._lists.get(output.sha256)) != output.size:
                return f"output {name!r}: blob {output.sha256} is missing"
            if output.sha256 not in blobs:
                return f"output {name!r}: blob {output.sha256} is not among its output files"
        return None


def stats(store: LocalStore) -> Stats:
    """Count the entries and bytes of a store. An unreadable entry counts only with its bytes. Raises StoreUnavailable."""
    records: Counter[str] = Counter()
    blobs: set[str] = set()
    chunks: set[str] = set()
    logical = stored = allocated = 0
    for kind in ("cas", "ac"):
        for _, status in store.entries.layout.entries(kind):
            stored += status.st_size
            allocated += status.st_blocks * 512
    for key, _ in store.entries.layout.entries("ac"):
        try:
            action = ActionResult.from_bytes(store.entries.read("ac", key) or b"")
            for sha256, files in action.blobs().items():
                chunks.update(file.sha256 for file in files if file.sha256 != sha256)
            if action.document is None:
                continue
            record = Record.from_bytes(store.entries.read("cas", action.document.sha256) or b"")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        records[record.recipe.stage] += 1
        blobs.update(output.sha256 for output in record.outputs.values())
        logical += sum(output.size for output in record.outputs.values())
    quarantined_sizes = []
    for file in list_folder(store.entries.layout.quarantine):
        with suppress(FileNotFoundError):  # a collection has just removed the file
            quarantined_sizes.append(file.stat(follow_symlinks=False).st_size)
    return Stats(
        records=dict(sorted(records.items())),
        blobs=len(blobs),
        chunks=len(chunks),
        logical_bytes=logical,
        stored_bytes=stored,
        allocated_bytes=allocated,
        quarantine_entries=len(quarantined_sizes),
        quarantine_bytes=sum(quarantined_sizes),
    )
