"""What a trace depended on, as it was discovered while user code ran.

A dependency is something that can be looked up again without running anything; its *observation* is what was seen:

=============  ==========================================  =====================================================
kind           name                                        observation
=============  ==========================================  =====================================================
file           path (project-relative, or absolute)        SHA-256 of its bytes, ``absent``, or ``directory``
link           path of a symbolic link                     where it points, or ``absent``
listing        directory path                              SHA-256 of its sorted entry names, or ``absent``
distribution   normalized name of an installed one         its version, or ``absent``
environment    variable name                               SHA-256 of its value, or ``absent``
=============  ==========================================  =====================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

DependencyKind = Literal["file", "link", "listing", "distribution", "environment"]

ABSENT = "absent"
DIRECTORY = "directory"


@dataclass(frozen=True, order=True)
class Dependency:
    """Something that a trace looked at (see the table above). Paths are posix, inside the project relative to it."""

    kind: DependencyKind
    name: str

    @property
    def part(self) -> str:
        """The name of its part in a recipe: ``file:models/vit.py``."""
        return f"{self.kind}:{self.name}"

    @classmethod
    def from_part(cls, part: str) -> Dependency:
        """The inverse of `part`. Raises ValueError."""
        kind, _, name = part.partition(":")
        if kind not in ("file", "link", "listing", "distribution", "environment") or not name:
            raise ValueError(f"{part!r} names no dependency")
        return cls(cast(DependencyKind, kind), name)


@dataclass(frozen=True)
class Observation:
    """A dependency and what was seen of it."""

    dependency: Dependency
    seen: str
