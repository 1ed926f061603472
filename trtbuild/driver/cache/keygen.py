"""``trtbuild cache keygen``: create a new key for signing records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trtbuild.driver.cache.documents import NewKey
from trtbuild.driver.configuration import config_path
from trtbuild.errors import EnvironmentFault, UsageError
from trtbuild.store.trust.signing import Signer


def create_key(name: str, out: str | None, environ: Mapping[str, str]) -> NewKey:
    """Create a signing key, and write it to the file `out`.

    The default of `out` is ``NAME.key`` in the directory of the default configuration file, even if ``$TRTBUILD_CONFIG``
    names another file.

    Raises UsageError if the file exists or cannot be written, ConfigurationError if `name` is not a valid name, and
    EnvironmentFault if `out` is None and there is no home directory.
    """
    signer = Signer.new(name)
    path = _default_path(name, environ) if out is None else Path(os.path.abspath(os.path.expanduser(out)))  # noqa: PTH100, PTH111
    try:
        signer.save(path)
    except FileExistsError:
        raise UsageError(
            "there is already a key, which is not replaced",
            file=str(path),
            hint="choose another file with --out FILE, or another --name",
        ) from None
    except OSError as error:
        raise UsageError(
            f"the key cannot be written: {error.strerror or error}",
            file=str(path),
            hint="choose another file with --out FILE",
        ) from error
    return NewKey(
        name=name,
        public=str(signer.trusted),
        fingerprint=signer.trusted.fingerprint,
        file=str(path),
    )


def _default_path(name: str, environ: Mapping[str, str]) -> Path:
    default, _ = config_path({key: value for key, value in environ.items() if key != "TRTBUILD_CONFIG"})
    if default is None:
        raise EnvironmentFault("there is no home directory for the key", hint="name a file with --out FILE")
    return Path(default).with_name(f"{name}.key")
