"""Makes the statistics of the remotes that a run used, and the warnings about remotes and keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX, Trust
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.report import Trouble


@dataclass(frozen=True, kw_only=True)
class RemoteStatistics:
    """The statistics of one remote, as ``--json`` shows them: counts of its records, then the fields of `RemoteReport`, the
    report of its transport."""

    name: str
    place: str
    hits: int
    misses: int
    blobs_gone: int
    lost_races: int  # another machine published the record first
    untrusted: int
    records_sent: int
    records_not_sent: int
    requests: int
    bytes_down: int
    bytes_up: int
    retries: int
    failures: int
    skipped: int
    given_up: str | None
    troubles: tuple[Trouble, ...]
    warnings: tuple[str, ...]


#: Field of `RemoteStatistics` → the warning if its count is not zero.
_WARNING_TEXTS = {
    "untrusted": "records that are not trusted here: {} (trtbuild why shows the reasons)",
    "blobs_gone": "blobs that records name, but the remote does not have: {}",
    "records_not_sent": "records that could not be sent: {} (trtbuild cache push sends them)",
}


def make_statistics(remote: RemoteStore, counts: Mapping[str, int], uploads: Uploads) -> RemoteStatistics:
    """Make the statistics of one remote. `counts` comes from `FoundRecords.counts_of`."""
    return RemoteStatistics(
        name=remote.name,
        place=remote.transport.place,
        hits=counts["hits"],
        misses=counts["misses"],
        blobs_gone=counts["blobs_gone"],
        lost_races=counts["lost_races"],
        untrusted=counts["untrusted"],
        records_sent=uploads.sent[remote.name],
        records_not_sent=uploads.not_sent[remote.name],
        **vars(remote.transport.report()),
    )


def warning_texts(remotes: Iterable[RemoteStatistics], trust: Trust, writers: Sequence[RemoteStore]) -> list[str]:
    """The warnings about the remotes and the keys."""
    texts = list(trust.warnings)
    if writers and (trust.own_domain or "").startswith(LOCAL_DOMAIN_PREFIX):
        names = ", ".join(writer.name for writer in writers)
        texts.append(f"{names}: new results are not uploaded, because trusted keys are configured, but no signing key")
    for remote in remotes:
        texts += [f"{remote.name}: {text}" for text in remote.warnings]
        counts = ((text, getattr(remote, field)) for field, text in _WARNING_TEXTS.items())
        texts += [f"{remote.name}: {text.format(count)}" for text, count in counts if count]
    return texts
