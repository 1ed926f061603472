"""Limits on the steps that run at the same time: the protocol, and a limit that allows all steps."""

from __future__ import annotations

from typing import Protocol

from trtbuild.core.planning.graph import Step


class ResourceLimit(Protocol):
    """Decides whether a step may start beside the running steps."""

    def allows(self, step: Step) -> bool:
        """Whether the step may start now."""
        ...

    def acquire(self, step: Step) -> None:
        """Count the step as running. The caller starts the step after this call."""
        ...

    def release(self, step: Step) -> None:
        """Count the step as ended."""
        ...


class NoLimit:
    """Allows all steps."""

    def allows(self, step: Step) -> bool:
        return True

    def acquire(self, step: Step) -> None:
        return

    def release(self, step: Step) -> None:
        return
