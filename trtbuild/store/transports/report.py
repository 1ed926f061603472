"""What became of a remote in a run: what was asked, what moved, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble with a remote: what was said the first time, and how often there was such."""

    kind: Literal["down", "refused", "full", "lied"]
    text: str
    hint: str | None
    count: int

    def __str__(self) -> str:
        return f"{self.text} ({self.count} times)" if self.count > 1 else self.text


@dataclass(frozen=True)
class RemoteReport:
    """What became of one remote in a run. `bytes_down` and `bytes_up` are of entries, without headers.

    `skipped` calls were not made, because the circuit was open. `given_up` says why it is, or is None. `warnings` is for
    people: what the transport has to say, and one text for each kind of trouble.
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

    def to_json(self) -> dict[str, Any]:
        """The form of the ``--json`` documents."""
        return {
            "requests": self.requests,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "retries": self.retries,
            "failures": self.failures,
            "skipped": self.skipped,
            "given_up": self.given_up,
            "troubles": [
                {"kind": trouble.kind, "text": trouble.text, "hint": trouble.hint, "count": trouble.count}
                for trouble in self.troubles
            ],
            "warnings": list(self.warnings),
        }
