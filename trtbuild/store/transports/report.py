"""The report of a remote in a run: requests, bytes and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Trouble:
    """The faults of one kind at a remote: the text of the first fault, and their number. ``lied`` means wrong content."""

    kind: Literal["down", "refused", "full", "lied"]
    text: str
    hint: str | None
    count: int

    def __str__(self) -> str:
        return f"{self.text} ({self.count} times)" if self.count > 1 else self.text


@dataclass(frozen=True)
class RemoteReport:
    """The requests and faults of one remote in a run. `bytes_down` and `bytes_up` are bytes of entries, without headers.

    A remote that fails too often is not used for the rest of the run (patience.py). `given_up` is the reason, or the text
    of the first refusal. `skipped` is the number of calls that were not made. `warnings` are texts for people: the warnings
    of the transport, a text for each kind of fault, and a text if the remote was given up.
    """

    requests: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    retries: int = 0
    failures: int = 0
    skipped: int = 0
    given_up: str | None = None
    troubles: tuple[Trouble, ...] = ()
    warnings: tuple[str, ...] = ()
