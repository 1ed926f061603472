"""Making a key, and using the keys that are configured."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import LOCAL
from trtbuild.driver.cache.keygen import keygen
from trtbuild.driver.configuration import TrustSettings, user_keys
from trtbuild.driver.project import wiring
from trtbuild.errors import ConfigurationError, UsageError
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer, parse_trusted

KEY, DOCUMENT = "ab" * 32, Output("ef" * 32, 1234)


def test_a_key_is_made_and_its_public_half_printed(command_line: CommandLine, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "", "TRTBUILD_CONFIG": str(tmp_path / "other.toml")}
    done = command_line.run("cache", "keygen", "--name", "me", environment=home)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "home" / ".config" / "trtbuild" / "me.key"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    signer = Signer.load(made)
    assert parse_trusted(done.stdout.splitlines()[0]) == signer.trusted
    assert str(made) in done.stdout
    assert signer.text().rpartition(":")[2] not in done.stdout + done.stderr

    again = command_line.run("cache", "keygen", "--name", "me", environment=home)
    assert again.returncode == 2
    assert "not replaced" in again.stderr
    assert Signer.load(made).public_key == signer.public_key

    elsewhere = command_line("cache", "keygen", "--out", "k/ci.key", environment=home)
    assert elsewhere["schema"] == "trtbuild.keygen/1"
    assert elsewhere["file"] == str(command_line.project / "k" / "ci.key")
    signer = Signer.load(Path(elsewhere["file"]))
    assert elsewhere["public"] == str(signer.trusted)
    assert elsewhere["fingerprint"] == signer.trusted.fingerprint


def test_what_cannot_be_a_name_or_a_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a name of a key"):
        keygen("a b", str(tmp_path / "x"), {})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        keygen("ci", str(tmp_path / "file" / "x"), {})


def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}


def test_the_configured_keys_are_used(tmp_path: Path) -> None:
    Signer("ci", bytes(32)).save(tmp_path / "ci.key")
    from_file = user_keys.keyring(TrustSettings(signing_key_file=tmp_path / "ci.key", domain="pr-7"), environ(tmp_path))
    from_text = user_keys.keyring(TrustSettings(signing_key=Signer("ci", bytes(32)).text()), environ(tmp_path))
    (one,), (two,) = from_file.sign(KEY, DOCUMENT), from_text.sign(KEY, DOCUMENT)
    assert (one.domain, two.domain) == ("pr-7", "ci")
    assert one.public_key == two.public_key
    assert "@" in one.builder
    reader = user_keys.keyring(TrustSettings(keys=(Signer("ci", bytes(32)).trusted,)), environ(tmp_path))
    assert reader.refusal(KEY, DOCUMENT, [two]) is None
    assert reader.refusal(KEY, DOCUMENT, [one]) == "signed for domain pr-7; this machine reads ci"
    assert not (tmp_path / "state").exists()


def test_without_a_signing_key_the_machines_own_lies_in_the_users_state(tmp_path: Path) -> None:
    settings = TrustSettings(keys=(Signer("ci", bytes(32)).trusted,))
    for base, place in (
        (str(tmp_path / "state"), tmp_path / "state"),
        ("relative", tmp_path / "home" / ".local" / "state"),
        ("", tmp_path / "home" / ".local" / "state"),
    ):
        policy = user_keys.keyring(settings, {**environ(tmp_path), "XDG_STATE_HOME": base})
        assert policy.sign(KEY, DOCUMENT)[0].domain.startswith(LOCAL)
        assert (place / "trtbuild" / "local.key").is_file()


def test_a_signing_key_that_is_none_is_named_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        user_keys.keyring(TrustSettings(signing_key="secret:words"), environ(tmp_path))
    assert caught.value.file == "TRTBUILD_SIGNING_KEY"
    assert "words" not in str(caught.value)


def test_without_keys_all_is_believed() -> None:
    assert not wiring.trust_in(TrustSettings()).enforced
    assert isinstance(wiring.trust_in(TrustSettings(keys=(Signer("ci", bytes(32)).trusted,))), Keyring)
