"""Open the files of a package, and no file outside it.

Rules
1. The path of the package's directory may contain a link (``current -> release-3``). The path is resolved once, when the
   package is opened, so that all files come from one directory even if the link changes later.
2. A link in the package to a path in the package is followed. A link to a path outside is refused (LinkRefused), unless
   the caller has set `follow_links`.
3. A path is resolved and checked, and the result is opened without following a link at its end. Usually only the folder of
   a file is resolved, once for each folder. If the file itself is a link, its whole path is resolved.
"""

# Paths are strings here: a package may have thousands of files.
# ruff: noqa: PTH114
from __future__ import annotations

import errno
import os

from trtbuild.errors import LinkRefused
from trtbuild.regular import open_regular

#: The errors for a link that is not followed (open(2), O_NOFOLLOW): of Linux, and of FreeBSD.
_LINK_ERRORS = (errno.ELOOP, errno.EMLINK)


class PackageFolder:
    """The directory of a package, from which files are opened."""

    def __init__(self, path: str | os.PathLike[str], *, follow_links: bool = False) -> None:
        #: The path as the caller wrote it, for messages.
        self._shown_path = os.fspath(path)
        #: The real path of the directory. It stays right if the process changes its working directory.
        self.root = os.path.realpath(path)
        self._follow_links = follow_links
        #: Folder in the package → its real path. No lock is needed, because all threads write the same values.
        self._folders: dict[str, str] = {}

    def open(self, name: str) -> int:
        """Open a regular file, and return its descriptor. Raises LinkRefused and OSError.

        `name` is a relative path without ``..`` (`core.packages.package_reading.check_path` checks this).
        """
        if self._follow_links:
            return open_regular(os.path.join(self.root, name))
        folder, _, last = name.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self._resolve(folder) if folder else self.root
        path = os.path.join(self._folders[folder], last)
        try:
            return open_regular(path, follow_links=False)
        except OSError as error:
            if error.errno not in _LINK_ERRORS:
                raise
        return open_regular(self._resolve(name), follow_links=False)

    def read(self, name: str) -> bytes:
        """Read a file. Raises the errors of `open`."""
        with open(self.open(name), "rb") as file:
            return file.read()

    def _resolve(self, name: str) -> str:
        """Return the real path of a file. Raises LinkRefused if it is outside of the package."""
        resolved = os.path.realpath(os.path.join(self.root, name))
        if self._is_inside(resolved):
            return resolved
        link, path = name, self.root  # for the message: find the first link that leads out
        for component in name.split("/"):
            path = os.path.join(path, component)
            if os.path.islink(path) and not self._is_inside(os.path.realpath(path)):
                link = os.path.relpath(path, self.root)
                break
        shown, target = os.path.join(self._shown_path, link), os.path.realpath(path)
        raise LinkRefused(
            f"{shown} is a symbolic link that leads out of the package, to {target}",
            hint="copy the package with the targets of its links (cp -rL), or use trtbuild.load(…, follow_links=True)",
        )

    def _is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(f"{self.root.rstrip('/')}/")
