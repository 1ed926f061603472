"""The entries of the configuration file and of the environment variables, each with its place, and all problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.configuration.file import ConfigFile, Place
from trtbuild.errors import ConfigurationError, ConfigurationErrors, UsageError

Value = TypeVar("Value")

#: The allowed keys of the file, by table.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "cache": ("max_size",),
    "remote": ("name", "url", "mode", "patience_s", "connections"),
    "trust": ("keys", "revoked", "signing_key_file", "domain", "read_domains"),
    "matrix": ("sm_<number>",),
    "workers": ("scheduler", "ca", "cert", "key", "wait"),
}

#: Fields that users look for in the file → the place where they are set.
_WHERE_TO_SET = {
    "signing_key": "put the key into a separate file (signing_key_file), or into TRTBUILD_SIGNING_KEY",
    "dir": "TRTBUILD_CACHE_DIR sets the directory of the cache",
    "token": "put credentials into TRTBUILD_REMOTE_<NAME>_TOKEN, or …_USER and …_PASSWORD, or into ~/.netrc",
    "password": "put credentials into TRTBUILD_REMOTE_<NAME>_USER and …_PASSWORD, or into ~/.netrc",
}


class Sources:
    """The configuration file, the environment variables, and the problems that were found in them."""

    def __init__(self, environ: Mapping[str, str], file: ConfigFile | None) -> None:
        self.environ = environ
        self.file = file
        self.problems: list[ConfigurationError] = []
        if file is not None:
            self._check_tables(file)

    def raise_problems(self) -> None:
        """Raise ConfigurationError for one problem, or ConfigurationErrors for several."""
        if len(self.problems) > 1:
            raise ConfigurationErrors(self.problems)
        if self.problems:
            raise self.problems[0]

    def add_problem(self, place: Place, text: str, hint: str | None = None) -> None:
        self.problems.append(place.error(text, hint))

    def attempt(self, place: Place, check: Callable[[], Value]) -> Value | None:
        """Return the result of `check`. If it raises ConfigurationError, add the error as a problem, and return None."""
        try:
            return check()
        except ConfigurationError as error:
            self.add_problem(place, error.text, error.hint)
            return None

    def variable(self, name: str) -> tuple[str, Place] | None:
        """Return the value and place of an environment variable. None if it is empty or not set."""
        value = self.environ.get(name, "").strip()
        return (value, Place(variable=name)) if value else None

    def text(self, variable: str, table: str, key: str) -> tuple[str, Place] | None:
        """Return a string from the variable or the file, and its place. None if it is not set or invalid.

        For an invalid entry, a problem is added.
        """
        from_variable = self.variable(variable)
        if from_variable is not None:
            return from_variable
        value = self.in_table(table).get(key)
        if value is None or self.file is None:
            return None
        place = self.file.place(table, key)
        if not isinstance(value, str) or not value.strip():
            self.add_problem(place, f"{key} is not a string", f'write {key} = "…", or leave it out')
            return None
        return value.strip(), place

    def texts(self, variable: str, table: str, key: str) -> list[tuple[str, Place]]:
        """Return the strings of a list, from the variable or the file, each with its place.

        In a variable, spaces separate the strings. For an invalid item, a problem is added.
        """
        from_variable = self.variable(variable)
        if from_variable is not None:
            return [(word, from_variable[1]) for word in from_variable[0].split()]
        return [
            (value.strip(), place) for value, place in self.items(table, key) if self._check_text(value, place, key)
        ]

    def items(self, table: str, key: str) -> list[tuple[Any, Place]]:
        """Return the items of a list in the file, each with its place. Empty if the list is invalid or not set."""
        value = self.in_table(table).get(key)
        if value is None or self.file is None:
            return []
        if not isinstance(value, list) or not value:
            self.add_problem(
                self.file.place(table, key), f"{key} is not a list of strings", f'write {key} = ["…"], or leave it out'
            )
            return []
        return [(item, self.file.place(table, key, item=item if isinstance(item, str) else None)) for item in value]

    def size(self, variable: str, table: str, key: str) -> int | None:
        """Return a size in bytes. None if it is invalid or not set."""
        entry = self.text(variable, table, key)
        if entry is None:
            return None
        from trtbuild.driver.configuration.quantities import size_bytes

        try:
            return size_bytes(entry[0])
        except UsageError as error:
            self.add_problem(entry[1], error.text, error.hint)
            return None

    def in_table(self, name: str) -> Mapping[str, Any]:
        """Return a table of the file. Empty if there is no such table."""
        value = {} if self.file is None else self.file.values.get(name, {})
        return value if isinstance(value, dict) else {}

    def add_unknown_key(self, place: Place, key: str, known: Sequence[str], kind: str) -> None:
        """Add a problem for a key that is not allowed in its table."""
        self.add_problem(place, f"{key!r} is not known here", _WHERE_TO_SET.get(key) or suggestion(key, known, kind))

    def _check_text(self, value: object, place: Place, key: str) -> bool:
        """Whether an item of a list is a string that is not empty. If not, a problem is added."""
        if isinstance(value, str) and value.strip():
            return True
        self.add_problem(place, f"{key} has an item that is not a string", f'write {key} = ["…"]')
        return False

    def _check_tables(self, file: ConfigFile) -> None:
        for name, value in file.values.items():
            if name not in FIELDS:
                self.add_unknown_key(file.place(name), name, tuple(FIELDS), "tables")
            elif name == "remote":
                if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
                    self.add_problem(
                        file.place(name), "'remote' is not a list of tables", "write [[remote]], in two brackets"
                    )
            elif not isinstance(value, dict):
                self.add_problem(file.place(name), f"{name!r} is not a table", f"write [{name}]")
            elif name != "matrix":  # the keys of [matrix] contain numbers: `runners` checks them
                for key in value:
                    if key not in FIELDS[name]:
                        self.add_unknown_key(file.place(name, key), key, FIELDS[name], f"fields of [{name}]")
