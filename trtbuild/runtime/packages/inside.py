"""Open the files of a package, and no file outside it.

Rules
1. The path of the package's directory may contain a link (``current -> release-3``). It is resolved once, when the
   package is opened, so that all files come from one directory even if the link changes later.
2. Links inside the package to paths inside it are followed. A link to a path outside is refused (LinkRefused), unless
   the caller has set `follow_links`.
3. The path that was checked is the path that is opened: it is resolved, and a link in its last part is not followed again.
"""

# Paths are strings here: a package may have thousands of files.
# ruff: noqa: PTH114
from __future__ import annotations

import errno
import os

from trtbuild.errors import LinkRefused
from trtbuild.regular import open_regular

_NOT_FOLLOWED = (errno.ELOOP, errno.EMLINK)  # Linux, FreeBSD: open(2), O_NOFOLLOW


class Inside:
    """The directory of a package. `shown` is the caller's path, for error messages."""

    def __init__(self, shown: str | os.PathLike[str], *, follow_links: bool = False) -> None:
        self._shown = os.fspath(shown)
        self._root = os.path.realpath(shown)
        self._follow_links = follow_links
        #: Folder in the package → its real path. No lock is needed, because all threads write the same values.
        self._folders: dict[str, str] = {}

    def open(self, name: str) -> int:
        """Open a regular file and return its descriptor. `name` is relative and has no ``..``
        (`core.packages.package_reading.check_path`).

        Raises LinkRefused, and OSError if the file cannot be opened.
        """
        if self._follow_links:
            return open_regular(os.path.join(self._root, name))
        folder, _, last = name.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self._resolved(folder) if folder else self._root
        path = os.path.join(self._folders[folder], last)
        try:
            return open_regular(path, follow=False)
        except OSError as error:
            if error.errno not in _NOT_FOLLOWED:
                raise
        return open_regular(self._resolved(name), follow=False)

    def read(self, name: str) -> bytes:
        """Read the bytes of a file. Raises the errors of `open`."""
        with open(self.open(name), "rb") as file:
            return file.read()

    def _resolved(self, name: str) -> str:
        """Resolve a path of the package. Raises LinkRefused if it leads out of the package."""
        resolved = os.path.realpath(os.path.join(self._root, name))
        if self._is_inside(resolved):
            return resolved
        link, path = name, self._root
        for part in name.split("/"):
            path = os.path.join(path, part)
            if os.path.islink(path) and not self._is_inside(os.path.realpath(path)):
                link = os.path.relpath(path, self._root)
                break
        shown, target = os.path.join(self._shown, link), os.path.realpath(path)
        raise LinkRefused(
            f"{shown} is a symbolic link that leads out of the package, to {target}",
            hint="copy the package with the targets of its links (cp -rL), or use trtbuild.load(…, follow_links=True)",
        )

    def _is_inside(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root.rstrip('/')}/")
