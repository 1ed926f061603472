"""The dependencies of a calibration or trace: the files, packages and variables that user code read while it ran.

An *observation* is a dependency and its state at one time. Later plans observe the dependency again, without running user
code. The kinds of dependencies are:

* ``file``: the name is a path, relative to the project or absolute. The state is the SHA-256 of the bytes, ``absent``
  (also for a file that cannot be read), ``directory``, or ``special`` (a pipe, a socket, a device).
* ``link``: the name is the path of a symbolic link. The state is its target, or ``absent``.
* ``listing``: the name is the path of a directory. The state is the SHA-256 of the sorted names of its entries, or
  ``absent``. Some entries, such as ``__pycache__``, do not count.
* ``distribution``: the name is the normalized name of a package. The state is the version of the installed package. It is
  ``module`` if an installed module has this name, but no installed package, and otherwise ``absent``. The name ``*`` means
  all installed packages, and its state is a digest of their names and states.
* ``environment``: the name is the name of an environment variable. The state is the SHA-256 of its value, or ``absent``.
* ``import``: the name is the name of a module. The state is the path of the user's file or directory that an import finds
  through ``PYTHONPATH`` or an editable install. The state is ``absent`` if the import finds no such file or directory.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast, get_args

DependencyKind = Literal["file", "link", "listing", "distribution", "environment", "import"]

ABSENT = "absent"
DIRECTORY = "directory"


class Dependency(NamedTuple):
    """A dependency, of one of the kinds above. Paths use ``/``. Paths inside the project are relative to the project.

    The class is a tuple, because a plan hashes tens of thousands of dependencies."""

    kind: DependencyKind
    name: str

    @property
    def part(self) -> str:
        """The name of the recipe part for this dependency: ``file:models/vit.py``."""
        return f"{self.kind}:{self.name}"

    @classmethod
    def from_part(cls, part: str) -> Dependency:
        """The inverse of the property `part`. Raises ValueError if the kind is unknown or the name is empty."""
        kind, _, name = part.partition(":")
        if kind not in get_args(DependencyKind) or not name:
            raise ValueError(f"{part!r} is not the name of a dependency")
        return cls(cast(DependencyKind, kind), name)


class Observation(NamedTuple):
    """A dependency and its observed state."""

    dependency: Dependency
    state: str
