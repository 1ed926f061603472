"""The logs of steps: files below ``.trtbuild/logs/`` with the output that workers printed.

Rules
1. Each file contains the log of a step's last run. If that run printed nothing, there is no file.
2. The middle of a long log (more than `HEAD_BYTES` + `TAIL_BYTES`) is left out. A line in the file says so.
3. Logs are for people: no record or cache contains them. If a log cannot be written, the build does not fail.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trtbuild.atomic import replace_file

#: The numbers of bytes that are kept of the beginning and of the end of a long log.
HEAD_BYTES = 256 << 10
TAIL_BYTES = 1 << 20

#: Common file systems allow 255 bytes in a file name. The rest is for ``.log`` and for ``~`` with a digest.
_MAX_NAME_BYTES = 200


def log_file(folder: Path, step: str) -> Path:
    """Make the path of a step's log (``vit/engine/encoder.layers.3@ada.log``) from the step's id."""
    *above, last = step.split("/")
    return folder.joinpath(*(_file_name(part) for part in above), _file_name(last) + ".log")


def keep(folder: Path, step: str, text: str) -> Path | None:
    """Write `text` as the log of a step. Return the file, or None if `text` is empty or cannot be written."""
    path = log_file(folder, step)
    try:
        if not text.strip():
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, shorten(text), mode=0o600)
    except OSError:
        return None
    return path


def read(descriptor: int, start: int) -> str:
    """Return the text of a file from byte `start` on, without its middle if it is too long."""
    size = os.fstat(descriptor).st_size - start
    if size <= HEAD_BYTES + TAIL_BYTES:
        return os.pread(descriptor, max(0, size), start).decode("utf-8", "replace")
    head = os.pread(descriptor, HEAD_BYTES, start).decode("utf-8", "replace")
    tail = os.pread(descriptor, TAIL_BYTES, start + size - TAIL_BYTES).decode("utf-8", "replace")
    return f"{head}{_left_out(size)}{tail}"


def _left_out(size: int) -> str:
    return f"\n[… {size - HEAD_BYTES - TAIL_BYTES} bytes are left out …]\n"


def shorten(text: str) -> bytes:
    """Return `text` in UTF-8, without its middle if it is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) <= HEAD_BYTES + TAIL_BYTES + 100:  # short, or shortened by `read`, which adds a line
        return data
    return data[:HEAD_BYTES] + _left_out(len(data)).encode() + data[-TAIL_BYTES:]


def _file_name(part: str) -> str:
    """Return a part of a step's id as the name of a file or folder. A changed name gets a digest, so that it is unique."""
    file_name = "".join("_" if character in '\0\\:*?"<>|' or ord(character) < 32 else character for character in part)
    if file_name in ("", ".", "..") or file_name != part or len(file_name.encode()) > _MAX_NAME_BYTES:
        mark = hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        file_name = f"{file_name.encode('utf-8', 'replace')[:_MAX_NAME_BYTES].decode('utf-8', 'ignore')}~{mark}"
    return file_name
