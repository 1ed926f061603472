"""What workers print: one file for each step that printed something when it last ran, below ``.trtbuild/logs/``.

Rules
1. A log is of one run: the next run of the step replaces it, and removes it if there was nothing to keep.
2. It is bounded: of more than `HEAD` + `TAIL` bytes, the middle is left out and the file says so.
3. Logs are for people. They are in no record and in no cache, and one that cannot be written fails no build.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

#: Bytes that are kept of the beginning and of the end.
HEAD = 256 << 10
TAIL = 1 << 20

#: Names of files are at most 255 bytes long on the file systems in use; ``.log`` and a mark have to fit.
_LONGEST = 200


def log_file(folder: Path, step: str) -> Path:
    """Where the log of a step is: its id is its path (``vit/engine/encoder.layers.3@ada.log``)."""
    *above, last = step.split("/")
    return folder.joinpath(*(_name(part) for part in above), _name(last) + ".log")


def keep(folder: Path, step: str, text: str) -> Path | None:
    """Make `text` the log of a step. Returns its file, or None: there is nothing to keep, or it cannot be kept."""
    path = log_file(folder, step)
    try:
        if not text.strip():
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(bounded(text))
            os.replace(fresh, path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh)  # noqa: PTH108
            raise
    except OSError:
        return None
    return path


def read(descriptor: int, start: int) -> str:
    """What a file has from `start` on, without its middle if it is too long."""
    size = os.fstat(descriptor).st_size - start
    if size <= HEAD + TAIL:
        return os.pread(descriptor, max(0, size), start).decode("utf-8", "replace")
    head = os.pread(descriptor, HEAD, start).decode("utf-8", "replace")
    return f"{head}{_left_out(size)}{os.pread(descriptor, TAIL, start + size - TAIL).decode('utf-8', 'replace')}"


def _left_out(size: int) -> str:
    return f"\n[… {size - HEAD - TAIL} bytes are left out …]\n"


def bounded(text: str) -> bytes:
    """`text` in UTF-8, without its middle if it is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) <= HEAD + TAIL + 100:  # what `read` has shortened is not shortened again
        return data
    return data[:HEAD] + _left_out(len(data)).encode() + data[-TAIL:]


def _name(part: str) -> str:
    """A part of an id as the name of a file or folder."""
    plain = "".join("_" if character in '\0\\:*?"<>|' or ord(character) < 32 else character for character in part)
    if plain in ("", ".", "..") or plain != part or len(plain.encode()) > _LONGEST:
        mark = hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain.encode('utf-8', 'replace')[:_LONGEST].decode('utf-8', 'ignore')}~{mark}"
    return plain
