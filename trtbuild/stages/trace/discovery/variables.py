"""Wrap ``os.environ``, to record the environment variables that user code reads.

Rules
1. A variable is recorded when user code reads it, even if installed code has set it: code often sets a variable only if it
   does not exist (``os.environ.setdefault``), so the value may still come from outside.
2. Reads by installed code (``HF_HOME``, ``OMP_NUM_THREADS``) are not recorded, because these values differ between machines
   without an effect on the model. ``source: {env: […]}`` declares variables that do have an effect. But
   `SETTINGS_LIBRARIES` read variables for their caller. If the caller is user code, this counts as a read by user code.
3. If user code calls the standard library or one of `SETTINGS_LIBRARIES`, the library's reads of `MACHINE_VARIABLES` and of
   ``PYTHON…`` variables are not recorded.
4. If user code reads all variables at once, the trace is not cacheable. If a settings library reads all variables for user
   code, the trace is cacheable only if the manifest declares `env`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.replacements import Replacements
from trtbuild.stages.trace.user_code.frames import find_caller, is_thread_of_python

#: Variables about the machine and its user, not about a model.
MACHINE_VARIABLES = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "USERNAME", "LNAME", "TMPDIR", "TEMP", "TMP", "PATH", "PWD", "SHELL", "TZ"),
        *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"),
        *("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    }
)

#: Distributions that read environment variables and files with settings for the code that calls them.
SETTINGS_LIBRARIES = frozenset(
    {
        *("omegaconf", "hydra-core", "antlr4-python3-runtime", "dynaconf", "confection"),
        *("pydantic-settings", "pydantic", "python-dotenv", "python-decouple", "environs"),
    }
)


def wrap_variables(recorder: Recorder, replacements: Replacements, *, declares_variables: bool) -> None:
    """Wrap the methods of ``os.environ``. `declares_variables` is whether the manifest declares `env` for the source."""
    environ_class = type(os.environ)
    get, put, delete, iterate, describe = (
        environ_class.__getitem__,
        environ_class.__setitem__,
        environ_class.__delitem__,
        environ_class.__iter__,
        environ_class.__repr__,
    )

    def read(self: Any, key: Any) -> str:
        with recorder.ignore_own_reads() as outermost:
            if outermost and isinstance(key, str | bytes):
                name = os.fsdecode(key)
                if _is_variable_recorded(recorder, name):
                    recorder.record_variable(name)
        return get(self, key)

    def record_change(key: Any) -> None:
        frame = find_caller(recorder.owners)
        if isinstance(key, str | bytes) and frame is not None and recorder.owners.is_user(frame[0]):
            recorder.record_variable_change(os.fsdecode(key))

    def write(self: Any, key: Any, value: Any) -> None:
        put(self, key, value)
        record_change(key)

    def remove(self: Any, key: Any) -> None:
        with recorder.ignore_own_reads() as outermost:
            if outermost and isinstance(key, str | bytes) and _is_variable_recorded(recorder, os.fsdecode(key)):
                recorder.record_variable(os.fsdecode(key))  # user code learns whether the variable exists
        delete(self, key)
        record_change(key)

    def refuse_all() -> None:
        with recorder.ignore_own_reads() as outermost:
            frame = find_caller(recorder.owners) if outermost else None
            if frame is not None and recorder.owners.is_user(frame[0]):
                name = recorder.dependency_name(frame[0])
                recorder.refuse_storage(
                    f"{name}:{frame[1]} reads all environment variables; read the ones you need by name"
                )
            elif outermost and not declares_variables:
                frame = find_caller(recorder.owners, SETTINGS_LIBRARIES)
                if frame is not None and recorder.owners.is_user(frame[0]):
                    name = recorder.dependency_name(frame[0])
                    recorder.refuse_storage(
                        f"{name}:{frame[1]} calls a library that reads all environment variables; name the ones that "
                        "it needs in `env` of the source"
                    )

    def iterate_all(self: Any) -> Any:
        refuse_all()
        yield from iterate(self)

    def describe_all(self: Any) -> str:
        refuse_all()
        return describe(self)

    for name, value in (
        ("__getitem__", read),
        ("__setitem__", write),
        ("__delitem__", remove),
        ("__iter__", iterate_all),
        ("__repr__", describe_all),
    ):
        replacements.replace(environ_class, name, value)


def _is_variable_recorded(recorder: Recorder, name: str) -> bool:
    """Whether the current read of a variable is recorded (rules 1 to 3)."""
    owners = recorder.owners
    is_one_of_all = sys._getframe(2).f_code.co_name == "__iter__"  # of ``os.environ.items()``
    user_frame = find_caller(owners, frozenset() if is_one_of_all else SETTINGS_LIBRARIES)
    if user_frame is None and is_thread_of_python(owners):
        return name not in MACHINE_VARIABLES and not name.startswith("PYTHON")
    if user_frame is None or not owners.is_user(user_frame[0]):
        return False
    if name not in MACHINE_VARIABLES and not name.startswith("PYTHON"):
        return True
    frame: Any = sys._getframe(2)  # the caller of ``os.environ.__getitem__``
    while frame is not None and os.path.basename(frame.f_code.co_filename).startswith(
        ("os.py", "<frozen os", "_collections", "<frozen _collections")
    ):
        frame = frame.f_back
    return frame is not None and owners.is_user(frame.f_code.co_filename)
