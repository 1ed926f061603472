"""The keys of this user on this machine: the configured keys, and the key that only this machine uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtbuild.driver.configuration.builder import builder_name
from trtbuild.driver.configuration.settings import TrustSettings, expand_home
from trtbuild.errors import ConfigurationError
from trtbuild.store.trust.keyring import Keyring, MachineKey
from trtbuild.store.trust.signing import Signer


def keyring(settings: TrustSettings, environ: Mapping[str, str]) -> Keyring:
    """Return the trusted keys and the signer. Raises ConfigurationError for a key that cannot be read."""
    key_path = machine_key_path(environ)
    return Keyring(
        settings.keys,
        revoked=settings.revoked,
        read_domains=settings.read_domains,
        signer=_signer(settings),
        domain=settings.domain,
        machine=None if key_path is None else MachineKey(key_path),
        builder=builder_name(),
    )


def _signer(settings: TrustSettings) -> Signer | None:
    if settings.signing_key_file is not None:
        return Signer.load(settings.signing_key_file)
    if settings.signing_key is None:
        return None
    try:
        return Signer.from_text(settings.signing_key)
    except ConfigurationError as error:
        error.file = "TRTBUILD_SIGNING_KEY"
        raise


def machine_key_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the key that is valid on this machine only: ``$XDG_STATE_HOME/trtbuild/local.key``.

    Without this variable, the key is below ``~/.local/state``. Returns None if there is no home directory, either."""
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # XDG Base Directory Specification: a relative path must be ignored
        base = expand_home("~/.local/state", environ)
    return Path(base) / "trtbuild" / "local.key" if base.startswith("/") else None
