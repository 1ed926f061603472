"""The kinds of remotes: one row for each, with the schemes of its URLs and the class of its transport.

The configuration also checks URLs with this table. docs/architecture.md explains how to add a row.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import Transport


@dataclass(frozen=True)
class RemoteKind:
    """One kind of remote.

    `transport` is ``module:Class``. It is imported when a remote of the kind is opened, and constructed with the
    `RemoteSettings`. `address` says what follows the scheme in a URL: the configuration checks this. `package` is a package
    that must be installed, and `extra` is the extra of trtbuild that installs it.
    """

    schemes: tuple[str, ...]
    transport: str
    address: Literal["host", "bucket", "directory"]
    package: str | None = None
    extra: str | None = None


KINDS: tuple[RemoteKind, ...] = (
    RemoteKind(("http", "https"), "trtbuild.store.transports.http:HttpTransport", "host"),
    RemoteKind(("file",), "trtbuild.store.transports.directory:DirectoryTransport", "directory"),
    RemoteKind(("s3", "gs", "az"), "trtbuild.store.transports.objects:ObjectTransport", "bucket", "obstore", "objects"),
)


def kind_of(url: str) -> RemoteKind:
    """The kind of the remote at `url`. For an unknown scheme, raises a ConfigurationError that lists the known schemes."""
    scheme = url.partition(":")[0]
    for kind in KINDS:
        if scheme.lower() in kind.schemes:
            return kind
    known_schemes = [known_scheme for kind in KINDS for known_scheme in kind.schemes]
    raise ConfigurationError(
        f"{scheme!r} is not a scheme of a remote", hint=suggestion(scheme, known_schemes, "schemes")
    )


def open_transport(settings: RemoteSettings) -> Transport:
    """The transport of a remote. Sends nothing yet.

    Raises ConfigurationError for an unknown scheme, a missing package, and a URL that the transport does not accept.
    """
    kind = kind_of(settings.url)
    if kind.package is not None:
        try:
            importlib.import_module(kind.package)
        except ImportError as error:
            raise ConfigurationError(
                f"remote {settings.name}: {kind.schemes[0]}:// needs the package {kind.package}, which is not installed",
                hint=f"pip install 'trtbuild[{kind.extra}]'",
            ) from error
    module, _, name = kind.transport.partition(":")
    transport_object: Transport = getattr(importlib.import_module(module), name)(settings)
    return transport_object
