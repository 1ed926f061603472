"""The configuration file, in TOML: check its owner and mode, read its values, and find the line of each entry.

Rules
1. As with ssh's configuration, the file must belong to the user or to root, and other users must not be able to write
   it. Otherwise another user could change trusted keys and remotes, and so run code as this user. A group may write the
   file only if the group has this user's name and no other member, because many systems create such groups. Root
   accepts a file of any owner, because a file mounted into a container keeps its owner from the host.
2. The file must be a regular file of UTF-8 text. The opened file is checked, not the path.
3. TOML parsers do not report the lines of entries. So this module searches the text for table headers, and for keys at
   the beginning of a line. For an entry of an inline table, it returns the line of the enclosing entry.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import ConfigurationError

MAX_FILE_BYTES = 1 << 20

_POSITION_PATTERN = re.compile(r"\s*\(at line (\d+), column (\d+)\)")
_HEADER_PATTERN = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY_PATTERN = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")


@dataclass(frozen=True)
class Place:
    """The place of an entry: a line of a file, or an environment variable."""

    file: str | None = None
    line: int | None = None
    variable: str | None = None

    def error(self, text: str, hint: str | None = None) -> ConfigurationError:
        return ConfigurationError(
            f"{self.variable}: {text}" if self.variable else text, file=self.file, line=self.line, hint=hint
        )


class ConfigFile:
    """A parsed configuration file: its values, the places of its entries, and its SHA-256."""

    def __init__(self, path: str, data: bytes) -> None:
        """Parse the file. Raises ConfigurationError if the data is not UTF-8 text or not TOML."""
        from hashlib import sha256

        self.path = path
        self.sha256 = sha256(data).hexdigest()
        try:
            self._text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigurationError("it is not UTF-8 text", file=path, line=line, hint="save it as UTF-8") from None
        self.values = _parse(path, self._text)
        self._lines = self._text.splitlines()

    def place(self, table: str, key: str | None = None, *, nth: int = 0, item: str | None = None) -> Place:
        """Return the place of a table, of its entry `key`, or of an `item` in the array of this entry.

        `nth` is the index of the table if several tables have this name.
        """
        table_line, key_line = 0, None
        for number, current, index, name in self._entries():
            if current != table or index != nth:
                continue
            table_line = table_line or number
            if name is not None and name.split(".")[0] == key:
                key_line = number
                break
        line = key_line or table_line or self._line_of_inline_table(table)
        if key_line and item is not None:
            line = next(
                (
                    candidate
                    for candidate in range(key_line, len(self._lines) + 1)
                    if item in self._lines[candidate - 1]
                ),
                key_line,
            )
        return Place(self.path, line)

    def _entries(self) -> list[tuple[int, str, int, str | None]]:
        """Return (line, table, index of the table among those with this name, key) for each header and each key.

        A header has key None.
        """
        table, index, counts = "", 0, dict[str, int]()
        entries: list[tuple[int, str, int, str | None]] = []
        for number, line in enumerate(self._lines, 1):
            header = _HEADER_PATTERN.match(line)
            if header and "=" not in line.split("#")[0]:
                table = header[2].strip("\"' ")
                index = counts.get(table, 0) if header[1] == "[[" else 0
                counts[table] = counts.get(table, 0) + 1
                entries.append((number, table, index, None))
            elif key := _KEY_PATTERN.match(line):
                entries.append((number, table, index, key[1]))
        return entries

    def _line_of_inline_table(self, name: str) -> int | None:
        """Return the line of a table that is written as ``name = {…}`` or ``name.key = …``."""
        for number, _, _, key in self._entries():
            if key is not None and key.split(".")[0] == name:
                return number
        return None


def read(path: str, *, must_exist: bool) -> ConfigFile | None:
    """Read and check the file. Return None for ``/dev/null``, and for a missing file if it need not exist.

    Raises ConfigurationError.
    """
    if path == os.devnull:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        if not must_exist:
            return None
        raise ConfigurationError(
            "TRTBUILD_CONFIG names a file that does not exist", file=path, hint="create it, or unset TRTBUILD_CONFIG"
        ) from None
    except OSError as error:
        raise _unreadable_error(path, error) from None
    try:
        _check_status(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(path, error) from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"it has more than {MAX_FILE_BYTES} bytes", file=path, hint="see docs/configuration.md"
        )
    return ConfigFile(path, data)


def _unreadable_error(path: str, error: OSError) -> ConfigurationError:
    reason = (error.strerror or str(error)).lower()
    hint = "make it readable, or set TRTBUILD_CONFIG to another file (/dev/null: no configuration)"
    return ConfigurationError(f"it cannot be read: {reason}", file=path, hint=hint)


def _check_status(path: str, status: os.stat_result) -> None:
    """Check rules 1 and 2."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("it is not a regular file", file=path, hint="name a TOML file")
    user = os.geteuid()
    if status.st_uid not in (user, 0) and user != 0:
        raise ConfigurationError(
            "it belongs to another user, who could use it to run code as you",
            file=path,
            hint=f'copy it to a file that you own: cp "{path}" ~/.config/trtbuild/config.toml',
        )
    others_can_write, group_can_write = status.st_mode & stat.S_IWOTH, status.st_mode & stat.S_IWGRP
    if others_can_write or (group_can_write and not _is_only_member(status.st_gid)):
        raise ConfigurationError(
            f"other users can write it (mode {stat.S_IMODE(status.st_mode):04o}), and could use it to run code as you",
            file=path,
            hint=f'chmod go-w "{path}"',
        )


def _is_only_member(gid: int) -> bool:
    """Whether this user is the only member of a group with the user's name (rule 1)."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    if group.gr_name != user.pw_name or not set(group.gr_mem) <= {user.pw_name}:
        return False
    # `gr_mem` does not have the users whose primary group this is (group(5))
    return all(other.pw_gid != gid or other.pw_uid == user.pw_uid for other in pwd.getpwall())


def _parse(path: str, text: str) -> Mapping[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION_PATTERN.search(str(error))
        reason = _POSITION_PATTERN.sub("", str(error)).replace("(at end of document)", "at the end of the file").strip()
        raise ConfigurationError(
            f"it is not valid TOML: {reason[:1].lower()}{reason[1:]}",
            file=path,
            line=int(position[1]) if position else len(text.splitlines()) or 1,
            hint='write strings in quotes: name = "team"; docs/configuration.md has an example',
        ) from None
