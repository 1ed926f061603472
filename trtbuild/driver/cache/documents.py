"""The documents that the ``cache`` commands and ``lock`` print with ``--json``. Sizes are in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.planning.graph import Reason, Verdict
from trtbuild.core.planning.locks import Area
from trtbuild.core.values.codec import optional
from trtbuild.driver.answers.documents import ErrorEntry


@dataclass(frozen=True, kw_only=True)
class CachePeriod:
    """The builds of one day.

    `hit_rate`: hits / (hits + misses), null if both are 0. `saved_s`: the seconds that the steps with hits took when
    they ran. `built_s`: the seconds of the misses. `reasons`: the number of misses by reason.
    """

    day: str
    builds: int
    hits: int
    misses: int
    hit_rate: float | None
    saved_s: float
    built_s: float
    reasons: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class CacheHistory:
    """The last builds of the project: the totals since the day `since`, and the last days.

    `CachePeriod` explains the numbers.
    """

    since: str
    builds: int
    hits: int
    misses: int
    hit_rate: float | None
    saved_s: float
    built_s: float
    reasons: Mapping[str, int]
    days: Sequence[CachePeriod]


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """The numbers and sizes of the entries of a cache.

    `records`: stage → number of records. `logical_bytes` counts a blob once for each record that names it.
    `stored_bytes` is the size of the files, and `allocated_bytes` is their space on the disk. `dedup_ratio`: logical
    bytes for each stored byte. `history`: the last builds of the project, if there are any.
    """

    schema: Literal["trtbuild.cache-stats/1"] = "trtbuild.cache-stats/1"
    cache: str
    records: Mapping[str, int]
    blobs: int
    chunks: int
    logical_bytes: int
    stored_bytes: int
    allocated_bytes: int
    dedup_ratio: float
    quarantine_entries: int
    quarantine_bytes: int
    history: CacheHistory | None = optional()


@dataclass(frozen=True, kw_only=True)
class DamagedEntry:
    """An entry that has invalid content, or names a missing or damaged file. It was moved to the quarantine.

    `kind`: ``blob``, ``chunk list`` or ``record``. `text`: the damage.
    """

    kind: str
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RebuiltEngine:
    """An engine that had other bytes when it was built again.

    `recorded`: the SHA-256 of the engine in the cache. `rebuilt`: the SHA-256 of the new engine. `source`: the store
    that the record came from, ``local`` or a remote. `remotes`: the remotes that have the recorded engine. `builder`:
    the user and machine that built it. `signed_by`: the signers of its record.
    """

    step: str
    key: str
    recorded: str
    rebuilt: str
    source: str | None
    quarantined: bool
    remotes: Sequence[str]
    builder: str
    signed_by: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class UncheckedEngine:
    """An engine that was not built again, and the reason."""

    step: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """The result of building a random sample of engines again. The same `seed` chooses the same sample.

    Numbers of engines: `engines` can be checked here, `sampled` are in the sample, `same` have the same bytes again.
    """

    seed: int
    engines: int
    sampled: int
    same: int
    different: Sequence[RebuiltEngine]
    unchecked: Sequence[UncheckedEngine]


@dataclass(frozen=True, kw_only=True)
class CacheVerify:
    """The result of a check of a cache. `ok` is false if an entry was damaged or a rebuilt engine differs.

    `lists`: the number of checked lists of chunks, in which large blobs are stored.
    """

    schema: Literal["trtbuild.cache-verify/1"] = "trtbuild.cache-verify/1"
    ok: bool
    records: int
    lists: int
    blobs: int
    bytes_read: int
    damage: Sequence[DamagedEntry]
    rebuilt: Rebuilt | None = optional()


@dataclass(frozen=True, kw_only=True)
class CacheGc:
    """The entries that a collection removed and kept.

    `kept_because`: reason → the number of entries that would have been removed without this reason.
    `leftovers_removed`: the number of old quarantined entries and of files of ended processes that it removed.

    In a shared directory, a collection first condemns a blob, and a later collection removes it. `blobs_restored`: the
    number of condemned blobs that this collection moved back.
    """

    schema: Literal["trtbuild.cache-gc/1"] = "trtbuild.cache-gc/1"
    cache: str
    dry_run: bool
    records_removed: int
    blobs_removed: int
    freed_bytes: int
    records_kept: int
    blobs_kept: int
    kept_bytes: int
    kept_because: Mapping[str, int]
    grace_s: int | None
    leftovers_removed: int
    blobs_condemned: int
    condemned_bytes: int
    blobs_restored: int


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A new key: `file` is the path of the private key, and `public` is the key that others trust."""

    schema: Literal["trtbuild.keygen/1"] = "trtbuild.keygen/1"
    name: str
    public: str
    fingerprint: str
    file: str


@dataclass(frozen=True, kw_only=True)
class MissingRecord:
    """A record that a build would need, and the reason why it is missing."""

    step: str
    key: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class UnsentRecord:
    """A record that was not sent to a remote, and the reason."""

    remote: str
    step: str
    key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RefusedRecord:
    """A record that was not exported or not imported, and the reason."""

    key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SentTo:
    """The numbers of records and bytes that were sent to a remote, and of those that the remote already had."""

    name: str
    records_sent: int
    records_there: int
    bytes_sent: int
    bytes_there: int


@dataclass(frozen=True, kw_only=True)
class PulledFrom:
    """The numbers of records and bytes that came from a remote."""

    name: str
    records: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CachePush:
    """The result of a push. `ok` is false if a record was not sent, or is missing here."""

    schema: Literal["trtbuild.cache-push/1"] = "trtbuild.cache-push/1"
    ok: bool
    records: int
    remotes: Sequence[SentTo]
    not_sent: Sequence[UnsentRecord]
    missing: Sequence[MissingRecord]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class CachePull:
    """The result of a pull. `ok` is false if the local store still lacks a record that a build needs."""

    schema: Literal["trtbuild.cache-pull/1"] = "trtbuild.cache-pull/1"
    ok: bool
    records: int
    present: int
    remotes: Sequence[PulledFrom]
    missing: Sequence[MissingRecord]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class CacheExport:
    """The bundle that was written."""

    schema: Literal["trtbuild.cache-export/1"] = "trtbuild.cache-export/1"
    ok: bool
    file: str
    records: int
    files: int
    bytes: int
    left_out: Sequence[RefusedRecord]


@dataclass(frozen=True, kw_only=True)
class CacheImport:
    """The result of an import. `ok` is false if some records are not trusted here."""

    schema: Literal["trtbuild.cache-import/1"] = "trtbuild.cache-import/1"
    ok: bool
    file: str
    records: int
    present: int
    bytes: int
    untrusted: Sequence[RefusedRecord]


@dataclass(frozen=True, kw_only=True)
class LockedSummary:
    """A locked model: the numbers of its steps and engines, and its targets."""

    model: str
    steps: int
    engines: int
    engine_bytes: int
    targets: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class MissingStep:
    """A step that cannot be locked, because it would have to run first."""

    id: str
    key: str | None
    verdict: Verdict
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class LockDifference:
    """A difference from the lock file. `was` is null if the entry was added, and `now` is null if it was removed."""

    area: Area
    name: str
    change: Literal["added", "removed", "changed"]
    was: str | None
    now: str | None


@dataclass(frozen=True, kw_only=True)
class Locked:
    """The result of `trtbuild lock`.

    `check`: whether the lock file was only compared (``--check``). `next`: the commands to run next.
    """

    schema: Literal["trtbuild.locked/1"] = "trtbuild.locked/1"
    ok: bool
    duration_s: float
    path: str
    existed: bool
    check: bool
    written: bool
    models: Sequence[LockedSummary]
    missing: Sequence[MissingStep]
    differences: Sequence[LockDifference]
    next: Sequence[str]
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]
