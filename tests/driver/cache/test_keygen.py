"""`cache keygen` creates a signing key, and the cache uses the configured keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import LOCAL_DOMAIN_PREFIX
from trtbuild.driver.cache.keygen import create_key
from trtbuild.driver.configuration import TrustSettings, user_keys
from trtbuild.driver.project import wiring
from trtbuild.errors import ConfigurationError, UsageError
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer, parse_trusted

#: A signature covers the key of a step, and the digest and size of its record document.
KEY, DOCUMENT = "ab" * 32, Output("ef" * 32, 1234)


def test_a_key_is_created_and_its_public_half_is_printed(command_line: CommandLine, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "", "TRTBUILD_CONFIG": str(tmp_path / "other.toml")}
    process = command_line.run("cache", "keygen", "--name", "me", environment=home)
    assert process.returncode == 0, process.stderr
    file = tmp_path / "home" / ".config" / "trtbuild" / "me.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    signer = Signer.load(file)
    assert parse_trusted(process.stdout.splitlines()[0]) == signer.trusted
    assert str(file) in process.stdout
    assert signer.text().rpartition(":")[2] not in process.stdout + process.stderr

    second = command_line.run("cache", "keygen", "--name", "me", environment=home)
    assert second.returncode == 2
    assert "not replaced" in second.stderr
    assert Signer.load(file).public_key == signer.public_key

    with_out = command_line("cache", "keygen", "--out", "k/ci.key", environment=home)
    assert with_out["schema"] == "trtbuild.keygen/1"
    assert with_out["file"] == str(command_line.project / "k" / "ci.key")
    signer = Signer.load(Path(with_out["file"]))
    assert with_out["public"] == str(signer.trusted)
    assert with_out["fingerprint"] == signer.trusted.fingerprint


def test_rejects_invalid_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a name of a key"):
        create_key("a b", str(tmp_path / "x"), {})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        create_key("ci", str(tmp_path / "file" / "x"), {})


def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}


def test_the_configured_keys_are_used(tmp_path: Path) -> None:
    Signer("ci", bytes(32)).save(tmp_path / "ci.key")
    from_file = user_keys.keyring(TrustSettings(signing_key_file=tmp_path / "ci.key", domain="pr-7"), environ(tmp_path))
    from_text = user_keys.keyring(TrustSettings(signing_key=Signer("ci", bytes(32)).text()), environ(tmp_path))
    (of_file,), (of_text,) = from_file.sign(KEY, DOCUMENT), from_text.sign(KEY, DOCUMENT)
    assert (of_file.domain, of_text.domain) == ("pr-7", "ci")
    assert of_file.public_key == of_text.public_key
    assert "@" in of_file.builder
    reader = user_keys.keyring(TrustSettings(keys=(Signer("ci", bytes(32)).trusted,)), environ(tmp_path))
    assert reader.refusal(KEY, DOCUMENT, [of_text]) is None
    assert reader.refusal(KEY, DOCUMENT, [of_file]) == "signed for domain pr-7; this machine reads ci"
    assert not (tmp_path / "state").exists()


def test_without_a_signing_key_a_machine_key_is_created_in_the_users_state(tmp_path: Path) -> None:
    settings = TrustSettings(keys=(Signer("ci", bytes(32)).trusted,))
    for base, folder in (
        (str(tmp_path / "state"), tmp_path / "state"),
        ("relative", tmp_path / "home" / ".local" / "state"),
        ("", tmp_path / "home" / ".local" / "state"),
    ):
        policy = user_keys.keyring(settings, {**environ(tmp_path), "XDG_STATE_HOME": base})
        assert policy.sign(KEY, DOCUMENT)[0].domain.startswith(LOCAL_DOMAIN_PREFIX)
        assert (folder / "trtbuild" / "local.key").is_file()


def test_the_error_about_an_invalid_signing_key_does_not_contain_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        user_keys.keyring(TrustSettings(signing_key="secret:words"), environ(tmp_path))
    assert caught.value.file == "TRTBUILD_SIGNING_KEY"
    assert "words" not in str(caught.value)


def test_without_keys_every_record_is_trusted() -> None:
    assert not wiring.trust_policy(TrustSettings()).checks_signatures
    assert isinstance(wiring.trust_policy(TrustSettings(keys=(Signer("ci", bytes(32)).trusted,))), Keyring)
