"""The last result of ``bench`` for each model, in ``.trtbuild/benches``, for reports of builds.

The folder may be deleted. ``bench`` may run outside a project, so it never creates ``.trtbuild``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.core.values.codec import encode
from trtbuild.driver.running.documents import Bench
from trtbuild.regular import read_regular

FOLDER = "benches"


def keep_bench(state: Path, document: Bench) -> None:
    """Keep a result below `state` (the directory ``.trtbuild``) if `state` exists. An error of the disk is ignored."""
    if not state.is_dir():
        return
    with contextlib.suppress(OSError):
        (state / FOLDER).mkdir(exist_ok=True)
        replace_file(_path(state, document.model), json.dumps(encode(document)).encode(), mode=0o600)


def kept_benches(state: Path, models: Iterable[str]) -> list[dict[str, Any]]:
    """The kept results of `models`, sorted by model. A file that is missing, invalid or of another schema is left out."""
    documents = []
    for model in sorted(models):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            document = json.loads(read_regular(_path(state, model)))
            if isinstance(document, dict) and document.get("schema") == Bench.schema:
                documents.append(document)
    return documents


def _path(state: Path, model: str) -> Path:
    return state / FOLDER / f"{hashlib.sha256(model.encode()).hexdigest()[:32]}.json"
