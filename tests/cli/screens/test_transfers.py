"""The results of ``trtbuild cache push``, ``pull`` and ``import`` as text, and the progress of a transfer."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from trtbuild.cli.screens import transfers
from trtbuild.driver.cache.documents import (
    CacheImport,
    CachePull,
    CachePush,
    MissingRecord,
    PulledFrom,
    RefusedRecord,
    SentTo,
    UnsentRecord,
)

PUSHED = CachePush(
    ok=True,
    records=34,
    remotes=[SentTo(name="team", records_sent=3, records_there=31, bytes_sent=5 << 20, bytes_there=64 << 20)],
    not_sent=[],
    missing=[],
    warnings=[],
)
PULLED = CachePull(ok=True, records=6, present=2, remotes=[], missing=[], warnings=[])


def unstyled(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_a_push_counts_sent_and_present_records() -> None:
    assert unstyled(transfers.push_lines(PUSHED)) == [
        "pushed  team  3 records, 5.0 MiB  31 records, 64.0 MiB there already"
    ]


def test_unsent_records_are_grouped_by_reason() -> None:
    failed = [UnsentRecord(remote="team", step=f"net/engine/{n}", key="", reason="it is full") for n in range(9)]
    failed.append(UnsentRecord(remote="team", step="net/trace", key="", reason="it was damaged"))
    missing = [MissingRecord(step="vit/trace", key="", reason="it was not built in this project before")]
    result = replace(PUSHED, not_sent=failed, missing=missing, warnings=["team: full"])
    assert unstyled(transfers.push_lines(result))[1:] == [
        "  not sent  net/engine/0, net/engine/1, net/engine/2 and 6 more to team  it is full",
        "  not sent  net/trace to team                                            it was damaged",
        "→ trtbuild doctor checks the remotes; then push again: records that are there already are not sent again",
        "  not built  vit/trace  it was not built in this project before",
        "→ trtbuild build, then push again",
        "warning: team: full",
    ]


def test_a_pull_lists_records_by_remote() -> None:
    remotes = [PulledFrom(name="team", records=3, bytes=1 << 20), PulledFrom(name="ci", records=1, bytes=10)]
    assert unstyled(transfers.pull_lines(replace(PULLED, remotes=remotes))) == [
        "pulled        team  3 records, 1.0 MiB",
        "pulled        ci    1 record, 10 B",
        "here already        2 records",
    ]


def test_long_lists_are_shortened() -> None:
    missing = [MissingRecord(step=f"net/engine/{n}", key="", reason="new") for n in range(30)]
    lines = unstyled(transfers.pull_lines(replace(PULLED, missing=missing)))
    assert lines[-2:] == ["  … and 10 more", "→ trtbuild build builds them here"]
    assert len(lines) == 1 + 20 + 2


def test_untrusted_records_are_listed() -> None:
    refused = [RefusedRecord(key="ab", reason="it is not signed")]
    result = CacheImport(ok=False, file="a.bundle", records=0, present=0, bytes=0, untrusted=refused)
    lines = unstyled(transfers.import_lines(result))
    assert lines[1] == "  not trusted  record ab  it is not signed" and lines[2].startswith("→ add the signer's key")


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_in_a_log_is_a_line_every_ten_seconds_and_nothing_with_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(transfers.time, "monotonic", lambda: now)
    with transfers.progress({"quiet": quiet}) as report_progress:
        for second in range(25):
            now = float(second)
            report_progress("pull from team", second, 24, "records")
            # this report is never shown: less than ten seconds have passed since the start or since the last line
            report_progress("write the bundle", second << 20, 24 << 20, "bytes")
    lines = ["pull from team  10 of 24 records  41%", "pull from team  20 of 24 records  83%"]
    assert capsys.readouterr().err.splitlines() == ([] if quiet else lines)
