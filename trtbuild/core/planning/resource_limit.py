"""The protocol of a limit on the steps that run at the same time, and the limit that allows all steps."""

from __future__ import annotations

from typing import Protocol

from trtbuild.core.planning.graph import Step


class ResourceLimit(Protocol):
    """Decides whether a step may start beside the running steps. A limit may contain another limit, and ask it, too."""

    def allows(self, step: Step) -> bool:
        """Whether the step may start now."""
        ...

    def acquire(self, step: Step) -> None:
        """Count the step as running. It starts after this call."""
        ...

    def release(self, step: Step) -> None:
        """Count the step as ended."""
        ...


class NoLimit:
    """A limit that allows every step."""

    def allows(self, step: Step) -> bool:
        return True

    def acquire(self, step: Step) -> None:
        return

    def release(self, step: Step) -> None:
        return
