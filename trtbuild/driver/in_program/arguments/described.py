"""The description of the inputs of a module in memory."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.core.model.spec import Input, NamedDim, Profile


@dataclass(frozen=True)
class ModuleInputs:
    """A module's inputs, the positional ones first, with their profiles and the dims that have a name."""

    inputs: tuple[Input, ...]
    profiles: tuple[Profile, ...]
    dims: tuple[NamedDim, ...] = ()
