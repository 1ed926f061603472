"""What remotes were used for in a run, what they did wrong, and what a person should know of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trtbuild.core.recipes.trust import LOCAL, Trust
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.remote.store import RemoteStore

Account = dict[str, Any]

#: What is said of a remote where a count of its account is not zero.
_TROUBLES = {
    "untrusted": "records that do not count here: {} (trtbuild why says why)",
    "blobs_gone": "blobs that could not be had, though records name them: {}",
    "records_not_sent": "records that could not be sent: {} (trtbuild cache push sends them)",
}


def account(remote: RemoteStore, counts: Mapping[str, int], uploads: Uploads) -> Account:
    """One remote, as ``--json`` shows it: `counts` of its records, what was sent, and its transport's own report."""
    report = getattr(remote.transport, "report", None)
    return {
        "name": remote.name,
        "place": remote.transport.place,
        **counts,
        "records_sent": uploads.sent[remote.name],
        "records_not_sent": uploads.not_sent[remote.name],
        **(report().to_json() if report is not None else {}),
    }


def warnings(accounts: Iterable[Account], trust: Trust, writers: Sequence[RemoteStore]) -> list[str]:
    """What a person should know of the remotes and of the keys, once each."""
    said = list(trust.warnings)
    if writers and (trust.own_domain or "").startswith(LOCAL):
        names = ", ".join(remote.name for remote in writers)
        said.append(f"{names}: what is built here is not sent, because keys are trusted and there is none to sign with")
    for each in accounts:
        said += [f"{each['name']}: {text}" for text in each.get("warnings", ())]
        said += [f"{each['name']}: {text.format(each[what])}" for what, text in _TROUBLES.items() if each[what]]
    return said
