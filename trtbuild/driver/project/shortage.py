"""Refuse work that cannot fit on a disk or into memory, before the work starts.

Rules
1. Work is refused only if it would certainly fail. So the needed bytes are lower bounds. A step that needs more bytes fails
   later, with another error.
2. If the system does not report a size, the work is not refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import InsufficientResources

if TYPE_CHECKING:
    from trtbuild.driver.outputs import OutputFile

_CACHE_HINT = "free some space, run `trtbuild cache gc`, or set TRTBUILD_CACHE_DIR to a directory on a larger disk"
_OUTPUTS_HINT = (
    "free some space, or choose other `outputs` in the manifest; then build again: the built engines are in the cache"
)


def free_disk_bytes(folder: Path) -> int | None:
    """The free bytes of the disk of `folder`, which need not exist; None if unknown."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def refuse_small_cache_disk(
    root: Path, subject: str, size_bytes: int, count_missing_bytes: Callable[[], int] | None = None
) -> None:
    """Raise InsufficientResources if the cache in `root` has no room for `size_bytes`. `subject` names the data.

    `count_missing_bytes` returns how many of the bytes the cache does not have yet. This call reads all the data, so it is
    made only if the disk has room for less than `size_bytes`.
    """
    free_bytes = free_disk_bytes(root)
    if free_bytes is None or size_bytes <= free_bytes:
        return
    needed_bytes = size_bytes if count_missing_bytes is None else count_missing_bytes()
    if needed_bytes > free_bytes:
        raise InsufficientResources(
            f"the cache {root} needs {size_text(needed_bytes)} more for {subject}, and its disk has "
            f"{size_text(free_bytes)} left",
            hint=_CACHE_HINT,
        )


def refuse_small_output_disk(
    project: Path, root: str, model: str, changed: Sequence[OutputFile], sizes: Mapping[str, int]
) -> None:
    """Raise InsufficientResources if the disk of the output `root` has no room for the `changed` files.

    `sizes` maps digests to sizes in bytes. A new file is written completely before the old file is removed. So the disk
    needs room for the largest new file, or for the growth of all files if that is more.
    """
    new = [sizes.get(file.sha256, len(file.data or b"")) for file in changed]
    old_bytes = sum(_file_bytes(project / file.path) for file in changed)
    needed_bytes = max([0, *new, sum(new) - old_bytes])
    free_bytes = free_disk_bytes(project / root)
    if free_bytes is not None and needed_bytes > free_bytes:
        raise InsufficientResources(
            f"the outputs of model {model!r} need {size_text(needed_bytes)} more in {root}, and its disk has "
            f"{size_text(free_bytes)} left",
            hint=_OUTPUTS_HINT,
        )


def refuse_small_memory(subject: str, weights_bytes: int, needed_bytes: int, free_bytes: int | None) -> None:
    """Raise InsufficientResources if `needed_bytes`, the least memory of the step `subject`, is more than `free_bytes`.

    `free_bytes` includes swap, and is None if unknown. The step reads weights of `weights_bytes`.
    """
    if free_bytes is not None and needed_bytes > free_bytes:
        raise InsufficientResources(
            f"{subject} needs at least {size_text(needed_bytes)} of memory for its weights of "
            f"{size_text(weights_bytes)}, and {size_text(free_bytes)} are free",
            hint="end other programs, run fewer steps at once (-j 1), raise the memory limit of the container, or build on "
            "a machine with more memory; `partition: {granularity: …}` makes engines with fewer weights",
        )


def size_text(size_bytes: int) -> str:
    """A size as text, such as ``3.0 GiB``. Sizes below 1 GiB are in MiB or KiB."""
    unit, shift = ("GiB", 30) if size_bytes >= 1 << 30 else ("MiB", 20) if size_bytes >= 1 << 20 else ("KiB", 10)
    return f"{size_bytes / (1 << shift):,.1f} {unit}"


def _file_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
