"""Whether a context of an engine can have an optimization profile.

It is known before TensorRT is asked, because its no may end the process (`execution`, rule 5).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trtbuild.errors import EngineError
from trtbuild.toolchain.libraries.execution_table import Calls


class Profiles:
    """Which optimization profiles of an engine its contexts have, and whether a new one can have some profile.

    Without profile sharing a profile is for one context at a time, and the engine says so in one way: a new context has
    profile 0, or -1 where another context has that (``IExecutionContext::getOptimizationProfile``).
    """

    def __init__(self, calls: Calls, count: int) -> None:
        #: Held while a context is made and gets its profile, where that can be refused.
        self.lock: AbstractContextManager[Any] = nullcontext() if calls.shared_profiles else threading.Lock()
        #: The library's contexts that there are.
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count = count
        self._shared: bool | None = True if calls.shared_profiles else None

    def can_take(self, context: Any, profile: int, make: Callable[[], Any]) -> bool:
        """Whether `context`, a new one, has `profile` or can have it. `make` makes one more. Raises EngineError."""
        if not 0 <= profile < self._count:
            count = f"{self._count} optimization profile{'s' * (self._count != 1)}"
            raise EngineError(f"the engine has {count}, and none is number {profile}")
        active = context.active_optimization_profile
        if active == -1 and self._shared is None:
            self._shared = False
        if active == profile or self._shared:
            return True
        if all(other.active_optimization_profile != profile for other in self.contexts):
            return True
        if self._shared is None:  # this one has profile 0: what the next one has tells
            self._shared = make().active_optimization_profile == active
        return self._shared
