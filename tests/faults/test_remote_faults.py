"""Broken remotes behind a local store: the build is correct, ends in time, and reports the problem.

These tests run in one process (machine.py). test_hostile_builds.py has whole builds.
"""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path

import pytest

from tests.faults.damages import DAMAGES
from tests.faults.disks import mounted
from tests.faults.hostile_cache import FAULTS, READ_FAULTS, HostileCache, redirect
from tests.faults.machine import (
    CONTENTS,
    LOCAL_CONTENTS,
    RECIPE,
    USER,
    Machine,
    assert_ended_well,
    assert_no_secret,
    publish_build,
)
from trtbuild.store.trust.action_result import ActionResult


@pytest.fixture(scope="module")
def published_entries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes]:
    return publish_build(tmp_path_factory.mktemp("colleague"))


@pytest.fixture
def remote_entries(published_entries: dict[tuple[str, str], bytes]) -> dict[tuple[str, str], bytes]:
    """A copy of the entries that another machine has published."""
    return dict(published_entries)


def test_a_lookup_in_an_undisturbed_remote_is_a_hit(
    tmp_path: Path, remote_entries: dict[tuple[str, str], bytes]
) -> None:
    with HostileCache(entries=remote_entries) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
    assert machine.built == 0 and (report["hits"], report["failures"], report["warnings"]) == (1, 0, [])
    assert cache.authorizations == {f"Basic {base64.b64encode(USER.encode()).decode()}"}, (
        "the requests have other credentials"
    )


@pytest.mark.parametrize("kind", ["ac", "cas"])
@pytest.mark.parametrize("fault", [*FAULTS, *READ_FAULTS])
def test_a_build_is_correct_if_reads_from_the_remote_fail(
    tmp_path: Path, remote_entries: dict[tuple[str, str], bytes], fault: str, kind: str
) -> None:
    began = time.monotonic()
    with HostileCache({**FAULTS, **READ_FAULTS}[fault], "GET", kind, remote_entries) as cache:
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build(contents=LOCAL_CONTENTS) == LOCAL_CONTENTS
        report = machine.end()
    assert cache.delivered > 0
    assert machine.built == 1
    assert report["failures"] + report["misses"] + report["blobs_gone"] > 0
    if fault not in ("404", "410"):  # with these statuses, the entry is missing
        assert report["warnings"], "the user sees no message"
    assert_ended_well(machine, report, began)


@pytest.mark.parametrize(("method", "kind"), [("HEAD", "cas"), ("PUT", "cas"), ("PUT", "ac")])
@pytest.mark.parametrize("fault", FAULTS)
def test_failed_writes_to_the_remote_leave_no_damaged_record(
    tmp_path: Path, fault: str, method: str, kind: str
) -> None:
    began = time.monotonic()
    with HostileCache(FAULTS[fault], method, kind) as cache:
        machine = Machine(tmp_path / "here", cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
        assert cache.delivered > 0
        assert machine.built == 1
        assert report["records_sent"] + report["records_not_sent"] == 1
        assert bool(report["records_not_sent"]) == any("could not be sent" in text for text in report["warnings"])
        assert_ended_well(machine, report, began)
        cache.fault = None
        colleague = Machine(tmp_path / "colleague", cache.url(USER))
        assert colleague.build() == CONTENTS, "the remote has a damaged record"
        assert_ended_well(colleague, colleague.end(), began)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_a_redirect_to_another_server_gets_no_credential(
    tmp_path: Path, remote_entries: dict[tuple[str, str], bytes], method: str
) -> None:
    with HostileCache() as other_server, HostileCache(entries=remote_entries if method == "GET" else {}) as cache:
        cache.fault, cache.method = redirect(f"http://127.0.0.1:{other_server.server.port}"), method
        machine = Machine(tmp_path, cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
    assert cache.delivered > 0 and other_server.server.connections == 0
    assert report["warnings"] and report["given_up"]
    assert_no_secret(report)


def test_a_remote_without_a_server_is_given_up_after_one_failure(tmp_path: Path) -> None:
    began = time.monotonic()
    with HostileCache() as cache:
        url = cache.url(USER)
    machine = Machine(tmp_path, url)
    assert machine.build() == CONTENTS
    report = machine.end()
    assert report["failures"] == 1 and report["given_up"] and report["skipped"] > 0
    assert_ended_well(machine, report, began)


# -- damage in a shared directory


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("target", ["entry", "document", "chunk", "blob"])
def test_a_damaged_file_in_a_shared_directory_is_not_used(tmp_path: Path, damage: str, target: str) -> None:
    began = time.monotonic()
    share = tmp_path / "share"
    share.mkdir()
    first = Machine(tmp_path / "first", f"file://{share}")
    first.build()
    assert first.end()["records_sent"] == 1
    entry = share / "ac" / RECIPE.key[:2] / RECIPE.key
    action = ActionResult.from_bytes(entry.read_bytes())
    assert action.document is not None
    digests = {
        "document": action.document.sha256,
        "chunk": next(file.sha256 for path, file in action.files if path.endswith("/2")),
        "blob": hashlib.sha256(CONTENTS["info"]).hexdigest(),
    }
    path = entry if target == "entry" else share / "cas" / digests[target][:2] / digests[target]
    original = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(DAMAGES[damage](original))
    machine = Machine(tmp_path / "here", f"file://{share}")
    built = machine.build(contents=LOCAL_CONTENTS)
    report = machine.end()
    # the entry may contain an intact copy of the document, and some bits of an entry have no meaning
    assert built == (LOCAL_CONTENTS if machine.built else CONTENTS)
    if target in ("chunk", "blob"):
        assert machine.built == 1 and report["blobs_gone"] == 1
        assert damage == "empty" or report["warnings"], "there is no warning, which is right only for an empty file"
    assert_ended_well(machine, report, began)


def test_records_of_the_team_are_used_when_the_local_disk_is_full(
    tmp_path: Path, remote_entries: dict[tuple[str, str], bytes]
) -> None:
    with mounted(tmp_path / "disk", "size=1m") as disk, HostileCache(entries=remote_entries) as cache:
        machine = Machine(disk / "store", cache.url(USER))
        assert machine.build() == CONTENTS
        report = machine.end()
        assert machine.built == 0 and report["hits"] == 1
        assert not any((disk / "store" / "tmp").iterdir())
