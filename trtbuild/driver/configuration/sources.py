"""The file and the variables as one: an entry, wherever it stands, with its place; and all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.configuration.file import ConfigFile, Place
from trtbuild.errors import ConfigurationError, ConfigurationErrors, UsageError

Value = TypeVar("Value")

#: What the file may hold, by table.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "cache": ("max_size",),
    "remote": ("name", "url", "mode", "patience_s", "connections"),
    "trust": ("keys", "revoked", "signing_key_file", "domain", "read_domains"),
}

#: Fields that people look for, and where it is said instead.
_ELSEWHERE = {
    "signing_key": "a key stands in a file of its own (signing_key_file), or in TRTBUILD_SIGNING_KEY",
    "dir": "the place of the cache is said by TRTBUILD_CACHE_DIR",
    "token": "credentials stand in TRTBUILD_REMOTE_<NAME>_TOKEN, or …_USER and …_PASSWORD, or in ~/.netrc",
    "password": "credentials stand in TRTBUILD_REMOTE_<NAME>_USER and …_PASSWORD, or in ~/.netrc",
}


class Sources:
    """Where entries come from, and what was wrong with them so far."""

    def __init__(self, environ: Mapping[str, str], file: ConfigFile | None) -> None:
        self.environ = environ
        self.file = file
        self.problems: list[ConfigurationError] = []
        if file is not None:
            self._check_tables(file)

    def raise_problems(self) -> None:
        """Raise what was found: ConfigurationError, or ConfigurationErrors."""
        if len(self.problems) > 1:
            raise ConfigurationErrors(self.problems)
        if self.problems:
            raise self.problems[0]

    def problem(self, place: Place, text: str, hint: str | None = None) -> None:
        """Something is wrong with the entry at a place."""
        self.problems.append(place.error(text, hint))

    def tried(self, place: Place, check: Callable[[], Value]) -> Value | None:
        """What `check` returns. A ConfigurationError of it gets the place, and is kept."""
        try:
            return check()
        except ConfigurationError as error:
            self.problem(place, error.text, error.hint)
            return None

    def variable(self, name: str) -> tuple[str, Place] | None:
        """A variable that is set, and not empty."""
        value = self.environ.get(name, "").strip()
        return (value, Place(variable=name)) if value else None

    def text(self, variable: str, table: str, key: str) -> tuple[str, Place] | None:
        """A text and its place; None where it is not said, or is none."""
        found = self.variable(variable)
        if found is not None or (value := self.in_table(table).get(key)) is None or self.file is None:
            return found
        place = self.file.place(table, key)
        if not isinstance(value, str) or not value.strip():
            self.problem(place, f"{key} is not a text", f'write {key} = "…", or leave it out')
            return None
        return value.strip(), place

    def texts(self, variable: str, table: str, key: str) -> list[tuple[str, Place]]:
        """The texts of a list, each with its place. In a variable they are separated by spaces."""
        found = self.variable(variable)
        if found is not None:
            return [(word, found[1]) for word in found[0].split()]
        return [(value.strip(), place) for value, place in self.items(table, key) if self._is_text(value, place, key)]

    def items(self, table: str, key: str) -> list[tuple[Any, Place]]:
        """The items of a list of the file, each with its place."""
        value = self.in_table(table).get(key)
        if value is None or self.file is None:
            return []
        if not isinstance(value, list) or not value:
            self.problem(
                self.file.place(table, key), f"{key} is not a list of texts", f'write {key} = ["…"], or leave it out'
            )
            return []
        return [(item, self.file.place(table, key, item=item if isinstance(item, str) else None)) for item in value]

    def size(self, variable: str, table: str, key: str) -> int | None:
        """A size in bytes."""
        entry = self.text(variable, table, key)
        if entry is None:
            return None
        from trtbuild.driver.configuration.quantities import size_bytes

        try:
            return size_bytes(entry[0])
        except UsageError as error:
            self.problem(entry[1], error.text, error.hint)
            return None

    def in_table(self, name: str) -> Mapping[str, Any]:
        """A table of the file, as far as there is one."""
        value = {} if self.file is None else self.file.values.get(name, {})
        return value if isinstance(value, dict) else {}

    def unknown(self, place: Place, key: str, known: Sequence[str], what: str) -> None:
        """A key that is not among the known ones of a table."""
        self.problem(place, f"{key!r} is not known here", _ELSEWHERE.get(key) or suggestion(key, known, what))

    def _is_text(self, value: object, place: Place, key: str) -> bool:
        if isinstance(value, str) and value.strip():
            return True
        self.problem(place, f"{key} holds something that is not a text", f'write {key} = ["…"]')
        return False

    def _check_tables(self, file: ConfigFile) -> None:
        for name, value in file.values.items():
            if name not in FIELDS:
                self.unknown(file.place(name), name, tuple(FIELDS), "tables")
            elif name == "remote":
                if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
                    self.problem(
                        file.place(name), "'remote' is not a list of tables", "write [[remote]], in two brackets"
                    )
            elif not isinstance(value, dict):
                self.problem(file.place(name), f"{name!r} is not a table", f"write [{name}]")
            else:
                for key in value:
                    if key not in FIELDS[name]:
                        self.unknown(file.place(name, key), key, FIELDS[name], f"fields of [{name}]")
