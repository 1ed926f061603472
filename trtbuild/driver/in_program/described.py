"""The inputs of a module that is in memory, as values."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.core.model.spec import Input, NamedDim, Profile


@dataclass(frozen=True)
class Described:
    """A module's inputs, in the order of its arguments, positional ones first; the profiles and named dims over them."""

    inputs: tuple[Input, ...]
    profiles: tuple[Profile, ...]
    dims: tuple[NamedDim, ...] = ()
