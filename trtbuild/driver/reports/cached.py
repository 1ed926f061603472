"""Read facts for a report from the local cache: the signer of a record, and the module paths of a lowered program.

A report also works without the cache, so an entry that is missing or cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trtbuild.driver.project import wiring
from trtbuild.errors import TrtbuildError
from trtbuild.store.local.local import LocalStore


class CachedFacts:
    """Facts about the results of a project, from its local cache."""

    def __init__(self, project: Path) -> None:
        self._store: LocalStore | None = None
        with contextlib.suppress(TrtbuildError, OSError):
            trust = wiring.trust_policy(wiring.load_configuration(project).trust)
            self._store = wiring.open_local(project, trust)

    def signers(self, keys: Iterable[str]) -> dict[str, str]:
        """Key → the signer of its record. Empty if this machine does not check signatures."""
        signers: dict[str, str] = {}
        if self._store is None or not self._store.trust.checks_signatures:
            return signers
        for key in dict.fromkeys(keys):
            with contextlib.suppress(TrtbuildError, OSError):
                signer = self._store.signer(key)
                if signer is not None:
                    signers[key] = signer
        return signers

    def call_modules(self, lower_key: str | None) -> Sequence[str]:
        """The module path of each operator call of a lowered program; empty if the paths are not known.

        `lower_key` is the key of the lower step.
        """
        if self._store is None or lower_key is None:
            return ()
        with contextlib.suppress(TrtbuildError, OSError, ValueError, TypeError, KeyError, IndexError):
            record = self._store.get_record(lower_key)
            if record is not None:
                calls = json.loads(self._store.get_bytes(record.outputs["modules"].sha256))
                return [str(module_path) for module_path, *_ in calls]
        return ()
