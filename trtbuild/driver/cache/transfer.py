"""Moving what a cache holds, to a remote and from one. Nothing is built.

Rules
1. What is moved is whole records (`selection`): afterwards the other side has them, or it is said which not, and why.
   Unlike a build, a transfer that could not do what it was told has failed (`ok`).
2. What the other side has is not moved again, file by file. So a transfer that was broken off goes on where it stopped.
3. Signatures travel as they are. What only this machine vouches for stays here, and what this machine does not believe is
   neither taken nor passed on.
4. Pointers go behind what they lead to: nobody finds one that leads nowhere.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trtbuild.core.recipes.keys import POINTERS
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.cache.selection import Selection, select
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, RemoteFault, StoreError, UsageError
from trtbuild.store.layers.fetching import Brought, Turns, bring
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.layers.sendable import for_others, found_locally, held, reading
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.records import INLINE
from trtbuild.store.remote.store import RemoteStore

Document = dict[str, Any]

#: Is told what goes on, how much of it is done, how much there is, and of what: ``records`` or ``bytes``.
Told = Callable[[str, int, int, str], None]

#: Why a record stays here that only this machine vouches for, and what to do.
OWN_ONLY = "only this machine vouches for it: configure a signing key, and build it with --force"

# Records that are sent at once: most are a few small files, one after another.
_AT_ONCE = 8


def push(request: Request, remote: str | None, told: Told) -> Document:
    """``trtbuild.cache-push/1``: the records of the models that were asked for, to the remotes that may be written.

    Raises UsageError when there is none (of that name).
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        targets = _named(store.writers, remote, "may be written")
        with store.session():
            with store.only_reading():
                selection = select(workspace)
                lacking, _ = complete(store, selection.keys, told)
            sendings = [_Sending(store.local, target) for target in targets]
            for sending in sendings:
                sending.send([key for key in selection.keys if key not in lacking], told)
    finally:
        store.close()
    not_sent = [
        {"remote": sending.name, "step": selection.named(key), "key": key, "reason": reason}
        for sending in sendings
        for key, reason in sorted(sending.failures.items())
        if (key in selection.packed, reason) != (True, OWN_ONLY)  # others put it together as this machine did
    ]
    missing = not_there(selection, lacking)
    return {
        "schema": "trtbuild.cache-push/1",
        "ok": not (not_sent or missing),
        "records": len(selection.keys),
        "remotes": [sending.to_json() for sending in sendings],
        "not_sent": not_sent,
        "missing": missing,
        "warnings": store.warnings(),
    }


def pull(request: Request, remote: str | None, told: Told) -> Document:
    """``trtbuild.cache-pull/1``: the records of the models that were asked for, into the local store.

    Raises UsageError when there is no remote (of that name) that may be read.
    """
    workspace = Workspace(replace(request, force=False))
    store = workspace.store
    try:
        with store.only_reading(_named(store.readers, remote, "may be read")), store.session():
            selection = select(workspace)
            lacking, brought = complete(store, selection.keys, told)
            sources = Counter(store.source_of(key) for key in selection.keys if key not in lacking)
            # what planning looked at came by then, what it did not look at came with `brought`
            for name, each in brought.items():
                sources[name] += sum(store.source_of(key) == "local" for key in each.came)
            moved = {report["name"]: report.get("bytes_down", 0) for report in store.reports()}
            warnings = store.warnings()
    finally:
        store.close()
    came = {name: records for name, records in sources.items() if name != "local" and records}
    missing = not_there(selection, lacking)
    return {
        "schema": "trtbuild.cache-pull/1",
        "ok": not missing,
        "records": len(selection.keys),
        "present": len(selection.keys) - len(lacking) - sum(came.values()),
        "remotes": [{"name": name, "records": came[name], "bytes": moved.get(name, 0)} for name in sorted(came)],
        "missing": missing,
        "warnings": warnings,
    }


def complete(store: LayeredStore, keys: Sequence[str], told: Told) -> tuple[dict[str, str], dict[str, Brought]]:
    """Bring the records with these keys that are not whole here from the remotes. Those that are not whole then → why; and
    what each remote gave. Raises StoreUnavailable."""
    lacking: dict[str, str] = {}
    tolerated: list[str] = []
    for key in keys:
        found = held(store.local, key)
        why = "it is not whole in the cache" if found is None else store.refuses(key, found.record, False)
        if why is not None:
            lacking[key] = why
        if why is not None and found is not None and store.refuses(key, found.record, True) is None:
            tolerated.append(key)
    came: dict[str, Brought] = {}
    for remote in store.readers:
        if not lacking:
            break
        what, total = f"pull from {remote.name}", len(lacking)

        def heard(brought: Brought, what: str = what, total: int = total) -> None:
            told(what, brought.done, total, "records")

        brought = came[remote.name] = bring(remote, list(lacking), store.local, heard, store.refuses)
        lacking.update({key: f"{remote.name}: {text}" for key, text in brought.failed.items()})
        lacking.update(brought.untrusted)
        for key in (*brought.came, *brought.present):
            del lacking[key]
    for key in tolerated:  # no remote has a better one
        lacking.pop(key, None)
    return lacking, came


def not_there(selection: Selection, lacking: dict[str, str]) -> list[Document]:
    """The steps without which a build would have to run something, each with the reason; those that only follow from them
    are left out."""
    to_run = [step for step in selection.missing if step.verdict == "run"]
    lack_more = {step.model for step in to_run if step.stage != "package"}
    steps = [
        {"step": step.id, "key": step.key, "reason": step.reason.text}
        for step in to_run
        if step.stage != "package" or step.model not in lack_more
    ]
    records = [{"step": selection.named(key), "key": key, "reason": why} for key, why in sorted(lacking.items())]
    return steps + records


def _named(remotes: Iterable[RemoteStore], name: str | None, what: str) -> tuple[RemoteStore, ...]:
    """The remotes that are meant. Raises UsageError when there is none."""
    known = {remote.name: remote for remote in remotes}
    if name is not None and name not in known:
        hint = (
            suggestion(name, known, "remotes") if known else "its mode has to be rw; trtbuild doctor names the remotes"
        )
        raise UsageError(f"no remote that {what} is called {name!r}", hint=hint)
    if not known:
        raise UsageError(
            f"no remote is configured that {what}",
            hint='set TRTBUILD_REMOTES="team=rw:https://…", or write [[remote]] into your config.toml',
        )
    return tuple(known.values()) if name is None else (known[name],)


class _Sending:
    """Records on their way from the local store to one remote."""

    def __init__(self, local: LocalStore, remote: RemoteStore) -> None:
        self.name = remote.name
        #: Records that could not be sent → why.
        self.failures: dict[str, str] = {}
        self._local = local
        self._remote = remote
        self._read = reading(local)
        self._lock, self._turns = threading.Lock(), Turns()
        self._named: dict[str, int] = {}  # files, and their sizes
        self._sent: dict[str, int] = {}
        self._came = self._present = 0

    def send(self, keys: Sequence[str], told: Told) -> None:
        """Have the records with these keys over there. Raises StoreUnavailable."""
        told(f"push to {self.name}", 0, len(keys), "records")
        pointers = {key for key in keys if self._leads_on(key)}
        done = 0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for batch in ([key for key in keys if key not in pointers], sorted(pointers)):  # rule 4
                running = {pool.submit(self._send, key): key for key in batch}
                try:
                    for future in as_completed(running):
                        why_not = future.result()
                        if why_not is not None:
                            self.failures[running[future]] = why_not
                        done += 1
                        told(f"push to {self.name}", done, len(keys), "records")
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise

    def _leads_on(self, key: str) -> bool:
        with suppress(StoreError, KeyError, ValueError):  # why it cannot be read is said when it is to be sent
            found = found_locally(self._local, key)
            return found is not None and found.record.recipe.stage in POINTERS
        return False

    def _send(self, key: str) -> str | None:
        """None, or why the record could not be sent."""
        found = held(self._local, key)
        if found is None:
            return "it is not whole in the cache any more"
        found = for_others(found, self._remote.trust)
        if found is None:
            return OWN_ONLY
        sent: dict[str, int] = {}

        def read(file: Output) -> bytes | memoryview:
            data = self._read(file)
            sent[file.sha256] = file.size
            return data

        try:
            with self._turns.of(found.parts):  # what several records name is sent once
                there = self._remote.publish(found, read)
        except (RemoteFault, BlobMissing, EntryCorrupt) as error:
            return error.text
        with self._lock:
            self._named.update({part.sha256: part.size for parts in found.parts.values() for part in parts})
            if there is found:
                self._came += 1
                self._sent.update(sent)
            else:  # nothing but its entry was made ready, which has small files in it
                self._present += 1
                self._sent.update({name: size for name, size in sent.items() if size > INLINE})
        return None

    def to_json(self) -> Document:
        """What was sent, and what was there already."""
        sent = sum(self._sent.values())
        return {
            "name": self.name,
            "records_sent": self._came,
            "records_there": self._present,
            "bytes_sent": sent,
            "bytes_there": sum(size for name, size in self._named.items() if name not in self._sent),
        }
