"""Signing keys and trusted keys: how they are written, read, and protected."""

from __future__ import annotations

import base64
import datetime
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild.core.recipes.record import Output
from trtbuild.errors import ConfigurationError
from trtbuild.store.trust import signing
from trtbuild.store.trust.signing import PRIVATE_PREFIX, Signer, TrustedKey, check_domain, parse_revoked, parse_trusted

PUBLIC = bytes(range(32))
ENCODED = base64.b64encode(PUBLIC).decode()
KEY, DOCUMENT = "ab" * 32, Output("ef" * 32, 1234)


def test_parses_a_trusted_key() -> None:
    assert parse_trusted(f"ci:{ENCODED}") == TrustedKey("ci", PUBLIC)
    key = parse_trusted(f" ci:{ENCODED};expires=2027-01-31;domains=ci,release\n")
    assert key == TrustedKey("ci", PUBLIC, datetime.date(2027, 1, 31), ("ci", "release"))
    assert str(key) == f"ci:{ENCODED};expires=2027-01-31;domains=ci,release"
    assert parse_trusted(str(key)) == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a trusted key"),
        (ENCODED, "not a trusted key"),
        (f":{ENCODED}", "not a trusted key"),
        (f"a b:{ENCODED}", "not a trusted key"),
        ("ci:", "not the base64 of 32 bytes"),
        (f"ci:{ENCODED[:-4]}", "not the base64 of 32 bytes"),
        (f"ci:{ENCODED}AAAA", "not the base64 of 32 bytes"),
        (f"ci:{ENCODED[:20]}!{ENCODED[20:]}", "not the base64 of 32 bytes"),
        (f"ci:{ENCODED};expires=soon", "'soon' is not a date"),
        (f"ci:{ENCODED};expires=2027-02-30", "'2027-02-30' is not a date"),
        (f"ci:{ENCODED};expires=20270101", "'20270101' is not a date"),
        (f"ci:{ENCODED};domains=", "'' is not a domain"),
        (f"ci:{ENCODED};domains=a,local-1", "no domain may be called 'local-1'"),
        (f"ci:{ENCODED};color=red", "'color=red' is not known"),
        (f"ci:{ENCODED};", "'' is not known"),
    ],
)
def test_rejects_invalid_trusted_keys(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_trusted(text)
    assert message in caught.value.text
    assert caught.value.hint


def test_parses_a_revoked_key_with_or_without_its_name() -> None:
    assert parse_revoked(f"ci:{ENCODED}") == parse_revoked(ENCODED) == PUBLIC
    assert parse_revoked(f"ci:{ENCODED};expires=2027-01-01") == PUBLIC
    with pytest.raises(ConfigurationError, match="not the base64 of 32 bytes"):
        parse_revoked("ci")


def test_rejects_a_private_key_in_place_of_a_public_one_without_showing_it() -> None:
    signer = Signer.new("ci")
    for parse in (parse_trusted, parse_revoked):
        with pytest.raises(ConfigurationError) as caught:
            parse(signer.text())
        assert "private key" in caught.value.text
        assert signer.text().rpartition(":")[2] not in str(caught.value)


def test_parses_a_private_key() -> None:
    signer = Signer("ci", PUBLIC)
    assert signer.text() == f"{PRIVATE_PREFIX}:ci:{ENCODED}"
    parsed = Signer.from_text(f"\n {signer.text()} \n")
    assert (parsed.name, parsed.public_key) == ("ci", signer.public_key)
    assert base64.b64encode(signer.public_key).decode() == "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ci:" + ENCODED,
        f"{PRIVATE_PREFIX}:ci",
        f"{PRIVATE_PREFIX}:ci:{ENCODED[:-4]}",
        f"{PRIVATE_PREFIX}::{ENCODED}",
    ],
)
def test_an_invalid_private_key_is_not_in_the_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a signing key") as caught:
        Signer.from_text(text)
    assert ENCODED[:12] not in str(caught.value)


def test_repr_does_not_show_the_private_key() -> None:
    signer = Signer.new("ci")
    secret = signer.text().rpartition(":")[2]
    assert secret not in f"{signer!r} {signer} {signer.trusted!r} {signer.trusted}"


def test_signatures_are_deterministic() -> None:
    """With Ed25519, the same private key and the same signed values give the same bytes on every machine."""
    signature = Signer("ci", PUBLIC).sign(KEY, DOCUMENT, "release", "me@here", "2026-01-02T03:04:05Z")
    assert signature.value.hex() == (
        "86cb942c424d220237eb4a562af9b251f166312f9f2ded4a89df8cdc82ba83bf"
        "02d59c2a0cdb4db9c8b1a7ef54d19bcc4b4df13af3dfa18c6bc6c9317db72505"
    )


def test_a_key_file_is_private_and_is_never_replaced(tmp_path: Path) -> None:
    path, signer = tmp_path / "keys" / "ci.key", Signer.new("ci")
    before = os.umask(0)
    try:
        signer.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert Signer.load(path).public_key == signer.public_key
    with pytest.raises(FileExistsError):
        Signer.new("ci").save(path)
    assert Signer.load(path).public_key == signer.public_key
    assert [file.name for file in path.parent.iterdir()] == ["ci.key"]


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o640, 0o666])
def test_rejects_a_key_file_that_others_may_use(tmp_path: Path, mode: int) -> None:
    Signer.new("ci").save(tmp_path / "ci.key")
    (tmp_path / "ci.key").chmod(mode)
    with pytest.raises(ConfigurationError, match="others may read or write") as caught:
        Signer.load(tmp_path / "ci.key")
    assert caught.value.hint == f"chmod 600 {tmp_path / 'ci.key'}"


def test_an_invalid_key_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Signer.load(tmp_path / "ci.key")
    assert caught.value.file == str(tmp_path / "ci.key")
    (tmp_path / "ci.key").write_bytes(b"\xff secret")
    (tmp_path / "ci.key").chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a signing key") as caught:
        Signer.load(tmp_path / "ci.key")
    assert caught.value.file == str(tmp_path / "ci.key")
    assert "secret" not in str(caught.value)


def test_rejects_reserved_and_invalid_domains() -> None:
    assert check_domain("pr-17") == "pr-17"
    for name in ("local-1", "", "a b"):
        with pytest.raises(ConfigurationError):
            check_domain(name)


def test_without_cryptography_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as caught:
        Signer.new("ci")
    assert "pip install" in (caught.value.hint or "")


def test_keys_are_read_without_cryptography() -> None:
    """A process that only reads a configuration does not need to wait for the import of cryptography."""
    read = "import sys, trtbuild.store.trust.signing as signing; signing.parse_trusted(sys.argv[1])"
    code = f"{read}; sys.exit('cryptography' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, f"ci:{ENCODED}"], check=True, timeout=60)
