"""The configuration of trust: trusted and revoked keys, the signing key, and domains (names for the origins of records)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.configuration.file import Place
from trtbuild.driver.configuration.settings import TrustSettings, expand_home
from trtbuild.driver.configuration.sources import Sources
from trtbuild.errors import ConfigurationError

if TYPE_CHECKING:
    from trtbuild.store.trust.signing import TrustedKey

#: The fields of a trusted key that is written as a table.
KEY_FIELDS = ("name", "key", "expires", "domains")

_KEY_EXAMPLE = '"ci:<base64>", as `trtbuild cache keygen` prints it'


def read_trust(sources: Sources) -> TrustSettings:
    """Return the trust settings. Errors are added to `sources.problems`."""
    key_file, key = _signing_key(sources)
    domain = sources.text("TRTBUILD_DOMAIN", "trust", "domain")
    own_domains = _parse_all(sources, "check_domain", [] if domain is None else [domain])
    read_domains = _parse_all(sources, "check_domain", sources.texts("TRTBUILD_READ_DOMAINS", "trust", "read_domains"))
    trusted = _trusted_keys(sources)
    revoked = _parse_all(sources, "parse_revoked", sources.texts("TRTBUILD_REVOKED_KEYS", "trust", "revoked"))
    return TrustSettings(
        keys=trusted,
        revoked=frozenset(revoked),
        signing_key_file=key_file,
        signing_key=key,
        domain=own_domains[0] if own_domains else None,
        read_domains=tuple(dict.fromkeys(read_domains)),
    )


def _parse_all(sources: Sources, function: str, texts: Iterable[tuple[str, Place]]) -> list[Any]:
    """Parse each text with a function of `store.trust.signing`. For an invalid text, a problem is added.

    The function is given by name, so that the module is imported only if there is a text.
    """
    values = []
    for text, place in texts:
        from trtbuild.store.trust import signing

        parsed = sources.attempt(place, lambda: getattr(signing, function)(text))  # noqa: B023
        if parsed is not None:
            values.append(parsed)
    return values


def _trusted_keys(sources: Sources) -> tuple[TrustedKey, ...]:
    if "TRTBUILD_TRUSTED_KEYS" in sources.environ and not sources.environ["TRTBUILD_TRUSTED_KEYS"].strip():
        sources.add_problem(
            Place(variable="TRTBUILD_TRUSTED_KEYS"),
            "it is set and empty: without trusted keys, every record would be trusted",
            "unset it, or give it the keys; CI passes an empty string for a secret that it does not know",
        )
        return ()
    variable = sources.variable("TRTBUILD_TRUSTED_KEYS")
    lines: list[tuple[str, Place]] = [] if variable is None else [(word, variable[1]) for word in variable[0].split()]
    for item, place in [] if variable is not None else sources.items("trust", "keys"):
        line = sources.attempt(place, lambda: _key_as_text(item))  # noqa: B023
        if line is not None:
            lines.append((line, place))
    return tuple(_parse_all(sources, "parse_trusted", lines))


def _key_as_text(item: Any) -> str:
    """Return a trusted key as ``name:<base64>;expires=…;domains=…``. Raises ConfigurationError without a place."""
    if isinstance(item, str):
        return item.strip()
    if not isinstance(item, dict):
        raise ConfigurationError("a trusted key is a string or a table", hint=f"write {_KEY_EXAMPLE}")
    for key in item:
        if key not in KEY_FIELDS:
            raise ConfigurationError(f"{key!r} is not known here", hint=suggestion(key, KEY_FIELDS, "fields of a key"))
    for key in ("name", "key"):
        if not isinstance(item.get(key), str):
            raise ConfigurationError(f"a trusted key has no {key}", hint='write {name = "ci", key = "<base64>"}')
    return f"{item['name']}:{item['key']}{_key_limits(item)}"


def _key_limits(item: Mapping[str, Any]) -> str:
    text = ""
    if "expires" in item:  # a TOML date or a string; `signing.parse_trusted` rejects invalid dates
        text += f";expires={item['expires']}"
    if "domains" in item:
        domains = item["domains"]
        if not isinstance(domains, list) or not domains or not all(isinstance(name, str) for name in domains):
            raise ConfigurationError("domains of a key are not a list of names", hint='write domains = ["ci"]')
        text += f";domains={','.join(domains)}"
    return text


def _signing_key(sources: Sources) -> tuple[Path | None, str | None]:
    """Return the file of the signing key, and the signing key itself. At least one of them is None."""
    key = sources.variable("TRTBUILD_SIGNING_KEY")
    if key is not None:
        if sources.variable("TRTBUILD_SIGNING_KEY_FILE") is not None:
            text = "TRTBUILD_SIGNING_KEY_FILE is set too, and there can be only one signing key"
            sources.add_problem(key[1], text, "unset one of them")
        return None, key[0]
    entry = sources.text("TRTBUILD_SIGNING_KEY_FILE", "trust", "signing_key_file")
    if entry is None:
        return None, None
    path = Path(expand_home(entry[0], sources.environ))
    if not path.is_absolute() and entry[1].variable is None:
        sources.add_problem(entry[1], f"signing_key_file {entry[0]!r} is not an absolute path", "begin it with / or ~/")
        return None, None
    return path.absolute(), None
