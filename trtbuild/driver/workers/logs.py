"""The logs of steps: files below ``.trtbuild/logs/`` with the output that workers printed.

Rules
1. A file contains the log of the step's last run. If that run printed nothing, there is no file.
2. If a log is longer than `HEAD` + `TAIL` bytes, its middle is left out, and a line in the file says so.
3. Logs are for people. Records and caches do not contain them. A log that cannot be written does not fail a build.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trtbuild.atomic import replace_file

#: The bytes that are kept of the beginning and of the end of a long log.
HEAD = 256 << 10
TAIL = 1 << 20

#: A file name may have 255 bytes on common file systems; this leaves space for ``.log`` and a mark.
_LONGEST = 200


def log_file(folder: Path, step: str) -> Path:
    """The path of a step's log, which is made of the step's id (``vit/engine/encoder.layers.3@ada.log``)."""
    *above, last = step.split("/")
    return folder.joinpath(*(_name(part) for part in above), _name(last) + ".log")


def keep(folder: Path, step: str, text: str) -> Path | None:
    """Write `text` as the log of a step. Returns the file, or None if `text` is empty or cannot be written."""
    path = log_file(folder, step)
    try:
        if not text.strip():
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, bounded(text), mode=0o600)
    except OSError:
        return None
    return path


def read(descriptor: int, start: int) -> str:
    """The text of a file from byte `start` on, without its middle if it is too long."""
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
    if len(data) <= HEAD + TAIL + 100:  # `read` has already shortened it, and added a line
        return data
    return data[:HEAD] + _left_out(len(data)).encode() + data[-TAIL:]


def _name(part: str) -> str:
    """A part of a step's id as the name of a file or folder."""
    plain = "".join("_" if character in '\0\\:*?"<>|' or ord(character) < 32 else character for character in part)
    if plain in ("", ".", "..") or plain != part or len(plain.encode()) > _LONGEST:
        mark = hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain.encode('utf-8', 'replace')[:_LONGEST].decode('utf-8', 'ignore')}~{mark}"
    return plain
