"""Signatures can be verified with the rules of docs/store-format.md alone. The commands and variables that
docs/threat-model.md names exist."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer

ROOT = Path(__file__).parents[3]


def eight_bytes(number: int) -> bytes:
    return struct.pack(">Q", number)


def frame(tag: str, value: str | bytes) -> bytes:
    """Return the type of a value, then its length, then its bytes."""
    data = value.encode() if isinstance(value, str) else value
    return tag.encode() + eight_bytes(len(data)) + data


def test_a_record_is_found_and_verified_with_the_rules_of_the_page(tmp_path: Path) -> None:
    recipe = Recipe("engine", 1, (("a", 1),))
    for domain in ("evil", "good"):
        keyring = Keyring(signer=Signer(domain, domain.encode() * 8), builder="me@host")
        store = LocalStore(tmp_path, keyring)
        store.put_record(Record(recipe, {"plan": store.put_bytes(b"plan")}, {"by": keyring.own_domain}))

    # "good" does not trust the record that "evil" stored under the key, so "good" has stored its record under another key
    key = recipe.key
    domain_key = hashlib.sha256(
        frame("S", "trtbuild.domain/1") + b"L" + eight_bytes(2) + frame("S", "good") + frame("S", key)
    ).hexdigest()
    for entry_key, signer in ((key, "evil"), (domain_key, "good")):
        entry = json.loads((tmp_path / "ac" / entry_key[:2] / entry_key).read_bytes())
        document = entry["outputFiles"][0]["digest"]
        (signature,) = json.loads(base64.b64decode(entry["stdoutRaw"]))
        assert (signature["signer"], signature["domain"], signature["builder"]) == (signer, signer, "me@host")
        items = [
            ("key", "S", key),
            ("document", "S", document["hash"]),
            ("size", "I", document["sizeBytes"]),
            ("signer", "S", signature["signer"]),
            ("domain", "S", signature["domain"]),
            ("builder", "S", signature["builder"]),
            ("signed_at", "S", signature["signedAt"]),
            ("public_key", "B", base64.b64decode(signature["publicKey"])),
        ]
        framed = sorted(frame("S", name) + frame(tag, value) for name, tag, value in items)
        signed = frame("S", "trtbuild.signature/1") + b"M" + eight_bytes(len(framed)) + b"".join(framed)
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature["publicKey"]))
        public.verify(base64.b64decode(signature["signature"]), signed)  # raises an exception for a wrong signature


def test_the_examples_of_the_page_are_right() -> None:
    text = (ROOT / "docs" / "store-format.md").read_text()
    key = hashlib.sha256(
        frame("S", "trtbuild.domain/1") + b"L" + eight_bytes(2) + frame("S", "ci") + frame("S", "ab" * 32)
    ).hexdigest()
    assert f"`{key}`" in text
    begin, end = re.search(r"signature `([0-9a-f]+)…([0-9a-f]+)`", text).groups()  # type: ignore[union-attr]
    golden = "".join(
        re.findall(r'^ +"([0-9a-f]{64})"$', (ROOT / "tests/store/trust/test_signing.py").read_text(), re.MULTILINE)
    )
    assert len(golden) == 128
    assert golden.startswith(begin)
    assert golden.endswith(end)


def test_the_commands_and_variables_of_the_threat_model_exist() -> None:
    from trtbuild.cli.commands.cache_commands import cache
    from trtbuild.driver import configuration

    text = (ROOT / "docs" / "threat-model.md").read_text()
    assert set(re.findall(r"trtbuild cache (\w+)", text)) <= cache.commands.keys()  # type: ignore[attr-defined]
    variables = set(re.findall(r"TRTBUILD_[A-Z]+(?:_[A-Z]+)*", text)) - {"TRTBUILD_REMOTE"}
    assert variables and variables <= set(configuration.VARIABLES)
