"""``trtbuild cache keygen``: a new key to sign records with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.driver.configuration import config_path
from trtbuild.errors import EnvironmentFault, UsageError
from trtbuild.store.trust.signing import Signer

Document = dict[str, Any]


def keygen(name: str, out: str | None, environ: Mapping[str, str]) -> Document:
    """``trtbuild.keygen/1``: `file` holds the private key, `public` is what others trust. Nothing is replaced.

    Raises UsageError when the file is there already, or cannot be; ConfigurationError for what is no name.
    """
    signer = Signer.new(name)
    path = _default_place(name, environ) if out is None else Path(os.path.abspath(os.path.expanduser(out)))  # noqa: PTH100, PTH111
    try:
        signer.save(path)
    except FileExistsError:
        raise UsageError(
            "there is a key already, which is not replaced", file=str(path), hint="say --out FILE, or another --name"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the key cannot be written: {error.strerror or error}", file=str(path), hint="say --out FILE"
        ) from error
    return {
        "schema": "trtbuild.keygen/1",
        "name": name,
        "public": str(signer.trusted),
        "fingerprint": signer.trusted.fingerprint,
        "file": str(path),
    }


def _default_place(name: str, environ: Mapping[str, str]) -> Path:
    """``<name>.key`` beside the default configuration file."""
    default, _ = config_path({key: value for key, value in environ.items() if key != "TRTBUILD_CONFIG"})
    if default is None:
        raise EnvironmentFault("there is no home directory to keep the key in", hint="say --out FILE")
    return Path(default).with_name(f"{name}.key")
