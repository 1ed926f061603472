"""Find out whether a context of an engine can use an optimization profile.

The answer must be known before TensorRT is called, because a refusal by TensorRT may end the process (`execution`, rule 5).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trtbuild.errors import EngineError
from trtbuild.toolchain.libraries.execution_table import ExecutionCalls


class ProfileUse:
    """The optimization profiles that the contexts of an engine use.

    If contexts share profiles, a new context has profile 0. Without profile sharing, only one context at a time can use a
    profile. Then a new context has profile -1 if another context has profile 0
    (``IExecutionContext::getOptimizationProfile``).
    """

    def __init__(self, calls: ExecutionCalls, count: int) -> None:
        #: Held while a context is created and gets its profile, if the library may refuse a profile.
        self.lock: AbstractContextManager[Any] = nullcontext() if calls.shared_profiles else threading.Lock()
        #: The engine's contexts that are alive.
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count = count
        #: Whether contexts share profiles; None if this is not known yet.
        self._shared: bool | None = True if calls.shared_profiles else None

    def can_use_profile(self, context: Any, profile: int, create: Callable[[], Any]) -> bool:
        """Whether the new `context` has `profile` or can get it. `create` creates another context, for a test. Raises
        EngineError if the engine does not have the profile."""
        if not 0 <= profile < self._count:
            count = f"{self._count} optimization profile{'s' * (self._count != 1)}"
            raise EngineError(f"the engine has {count}, but not number {profile}")
        active = context.active_optimization_profile  # 0 or -1 (see the class)
        if active == -1 and self._shared is None:
            self._shared = False
        if active == profile or self._shared:
            return True
        if all(other.active_optimization_profile != profile for other in self.contexts):
            return True
        if self._shared is None:  # `context` has profile 0. A second context gets profile 0 only if profiles are shared
            self._shared = create().active_optimization_profile == active
        return self._shared
