"""Which kinds of outputs there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs import packages, plans, pt2, triton
from trtbuild.driver.outputs.files import OutputFile


class Kind(Protocol):
    """One kind of output. A module with these two functions is one."""

    def files(self, root: str, index: Mapping[str, Any], record: Record) -> list[OutputFile]:
        """What is written below `root` (relative to the project) for a package with this index and record.

        The names in the index are checked already. Raises ValueError, KeyError, TypeError or AttributeError for what is
        no index.
        """

    def before(self, root: Path, files: Sequence[OutputFile], last: Recipe | None) -> list[Path]:
        """The files that an earlier build wrote below `root`, as far as that is known: those that are not in `files` any
        more are removed. `last` is the recipe that the model's package had then."""


#: By the word of the manifest's `outputs`.
KINDS: Mapping[str, Kind] = {"package": packages, "plans": plans, "triton": triton, "pt2": pt2}
