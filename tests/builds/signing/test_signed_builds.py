"""Builds that accept only signed records: the real command line builds one small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine, ran, step
from tests.projects import copy_project
from trtbuild.driver.workers.environments import worker_environment
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult
from trtbuild.store.trust.signing import Signer

#: The signer of CI. Its private key is 32 zero bytes.
CI = Signer("ci", bytes(32))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A project that was built once by a machine that signs with the key of CI."""
    base = tmp_path_factory.mktemp("signed")
    command = CommandLine(base / "project", base / "cache")
    copy_project("mlp", command.project)
    (base / "remote").mkdir()
    command.environment.update(
        HOME=str(base / "home"),
        XDG_STATE_HOME=str(base / "state"),
        XDG_CONFIG_HOME=str(base / "config"),
        TRTBUILD_TRUSTED_KEYS=str(CI.trusted),
        TRTBUILD_REMOTES=f"team=rw:file://{base / 'remote'}",
    )
    document = command("build", environment={"TRTBUILD_SIGNING_KEY": CI.text()})
    assert ran(document)["engine"] == 1
    assert ran(document)["partition"] == 1
    return command


def verdicts(document: Any) -> set[tuple[str, str]]:
    return {(entry["verdict"], entry["reason"]["code"]) for entry in document["steps"]}


def test_every_record_is_signed_including_the_conversions_of_a_partition_step(built: CommandLine) -> None:
    store, stages = LocalStore(built.cache), set()
    for key, _ in store.entries.layout.entries("ac"):
        action = ActionResult.from_bytes(store.entries.read("ac", key) or b"")
        if action.document is not None:
            assert [(signature.signer, signature.domain) for signature in action.signatures] == [("ci", "ci")], key
            record = store.get_record(key)
            assert record is not None, "the record is not under the key of its step"
            stages.add(record.recipe.stage)
    assert stages >= {"trace", "lower", "partition", "convert", "engine", "package"}


def remote_entries(built: CommandLine) -> dict[str, bytes]:
    """Key → content, for each entry in ``ac/`` of the remote."""
    remote = Path(built.environment["TRTBUILD_REMOTES"].removeprefix("team=rw:file://"))
    return {path.name: path.read_bytes() for path in remote.glob("ac/*/*")}


def test_records_in_the_remote_are_signed(built: CommandLine) -> None:
    entries = [ActionResult.from_bytes(data) for data in remote_entries(built).values()]
    signers = [[signature.signer for signature in entry.signatures] for entry in entries if entry.document is not None]
    assert len(signers) > 6
    assert all(names == ["ci"] for names in signers)


def test_users_who_trust_the_key_use_the_records(built: CommandLine, tmp_path: Path) -> None:
    assert verdicts(built("plan")) == {("hit", "recorded")}
    colleague = built("plan", environment={"TRTBUILD_CACHE_DIR": str(tmp_path)})
    assert verdicts(colleague) == {("hit", "recorded")}
    assert {entry["source"] for entry in colleague["steps"]} == {"team"}


def test_users_who_trust_another_key_see_why_a_lookup_misses(built: CommandLine, tmp_path: Path) -> None:
    trust_release = {"TRTBUILD_TRUSTED_KEYS": str(Signer("release", b"r" * 32).trusted)}
    for cache in (built.cache, tmp_path):
        document = built("plan", environment={**trust_release, "TRTBUILD_CACHE_DIR": str(cache)})
        trace = step(document, "net/trace")
        assert (trace["verdict"], trace["reason"]["code"]) == ("run", "untrusted")
        assert "signed by a key that is not trusted (name 'ci', fingerprint" in trace["reason"]["text"]


def test_a_machine_without_a_signing_key_finds_its_own_records(built: CommandLine) -> None:
    """The key of this user on this machine (`MachineKey`) signs the new records. The records of CI stay in the cache."""
    trust_release = {"TRTBUILD_TRUSTED_KEYS": str(Signer("release", b"r" * 32).trusted)}
    remote_before = remote_entries(built)
    document = built("build", environment=trust_release)
    assert ran(document)["engine"] == 1
    assert remote_entries(built) == remote_before, "records that only this machine trusts are not uploaded"
    assert any("but no signing key" in warning for warning in document["warnings"])
    assert verdicts(built("plan", environment=trust_release)) == {("hit", "recorded")}
    assert verdicts(built("plan")) == {("hit", "recorded")}
    assert built("cache", "verify")["ok"]
    for _ in range(2):  # the second build reads the snapshot of the first one (`trtbuild.null_build`)
        built("build", "--frozen", environment=trust_release)

    # without the machine key, or for another user, these records are not trusted
    (machine_key,) = (Path(built.environment["XDG_STATE_HOME"]) / "trtbuild").iterdir()
    moved_key = machine_key.rename(machine_key.parent.parent / "moved.key")
    built("build", "--frozen", environment=trust_release, expect=3)
    moved_key.rename(machine_key)
    another_user = {**trust_release, "XDG_STATE_HOME": f"{built.environment['XDG_STATE_HOME']}-of-another"}
    assert "untrusted" in {code for _, code in verdicts(built("plan", environment=another_user))}


def test_users_without_keys_who_share_a_project_sign_the_links_to_their_own_traces(
    built: CommandLine, tmp_path: Path
) -> None:
    """Each user has no key before the first build, which therefore must not rely on the links of the user before."""
    variables = {
        "TRTBUILD_TRUSTED_KEYS": str(Signer("release", b"r" * 32).trusted),
        "TRTBUILD_CACHE_DIR": str(tmp_path / "cache"),
        "TRTBUILD_REMOTES": "",
    }
    for user in ("first", "second"):
        environment = {**variables, "XDG_STATE_HOME": str(tmp_path / user)}
        assert ran(built("build", environment=environment))["trace"] == 1
    assert verdicts(built("plan", environment=environment)) == {("hit", "recorded")}


def test_workers_do_not_inherit_the_variables_for_keys_and_remotes(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("TRTBUILD_SIGNING_KEY", "TRTBUILD_SIGNING_KEY_FILE", "TRTBUILD_REMOTES", "TRTBUILD_REMOTE_TEAM_TOKEN")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HF_TOKEN", "the model's own")
    for kind in ("trace", "torch", "engine"):
        environment = worker_environment(kind)  # type: ignore[arg-type]
        assert not environment.keys() & set(secrets)
        assert "secret" not in environment.values()
    assert worker_environment("trace")["HF_TOKEN"] == "the model's own"
