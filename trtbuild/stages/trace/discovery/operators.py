"""Find the implementations of custom operators: the files or distributions that their digests cover.

Rules
1. Registrations of operators while user code runs are recorded. For a Python function its source file is recorded. For
   a library that ``torch.ops.load_library`` or an import loads, the file of the library is recorded.
2. An operator of an installed distribution is identified by the distribution's version.
3. The digest covers whole files: any edit of the file that defines an operator changes it.
4. An operator with an unknown implementation has no digest, and the trace is not cacheable.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import file_digest

UNKNOWN = "unknown"


class Operators:
    """Records the registrations of operators between `install` and `remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[str, set[str]] = {}
        self._undo: list[Callable[[], None]] = []
        #: Digest of each custom operator of the program, by its name with the overload.
        self.digests: dict[str, str] = {}

    def install(self) -> None:
        library: Any = torch.library.Library
        record_source = self._record_source
        original_impl, original_load = library.impl, torch.ops.load_library

        def impl(self: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            name = op_name if isinstance(op_name, str) else op_name._schema.name
            record_source(name if "::" in name else f"{self.ns}::{name}", fn)
            return original_impl(self, op_name, fn, *args, **kwargs)

        def load_library(path: Any) -> Any:
            before = set(torch._C._dispatch_get_all_op_names())
            result = original_load(path)
            for name in set(torch._C._dispatch_get_all_op_names()) - before:
                self._files.setdefault(name.split(".")[0], set()).add(str(path))
            return result

        library.impl = impl
        torch.ops.load_library = load_library
        self._undo.append(lambda: setattr(library, "impl", original_impl))
        self._undo.append(lambda: setattr(torch.ops, "load_library", original_load))

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def implementation(self, name: str) -> str:
        """The digest of the implementation of ``namespace.operator.overload``, for `program_text`."""
        if name not in self.digests:
            self.digests[name] = self._digest(name)
        return self.digests[name]

    def _digest(self, name: str) -> str:
        namespace, operator = name.split(".")[:2]
        qualified = f"{namespace}::{operator}"
        files = set(self._files.get(qualified, ()))
        definition: Any = torch._library.custom_ops.OPDEFS.get(qualified)
        if definition is not None:
            kernels = list(getattr(definition, "_backend_fns", {}).values())
            for function in (definition._init_fn, getattr(definition, "_abstract_fn", None), *kernels):
                files |= _source_of(function)
        parts = []
        for file in sorted(files):
            place = self._recorder.places.of(file)
            if place.distribution is not None and place.distribution != "torch":
                self._recorder.distribution(place.distribution)
                from trtbuild.stages.trace.user_code.observe import installed_version

                parts.append(f"{place.distribution} {installed_version(place.distribution)}")
            elif place.owner == "user":
                self._recorder.file(file)
                parts.append(file_digest(file) or UNKNOWN)
        if not parts or UNKNOWN in parts:
            self._recorder.refuse(f"the implementation of operator {qualified} cannot be found")
            return UNKNOWN
        return hashlib.sha256("\n".join(sorted(set(parts))).encode()).hexdigest()

    def _record_source(self, qualified: str, function: Any) -> None:
        self._files.setdefault(qualified.split(".")[0], set()).update(_source_of(function))


def _source_of(function: Any) -> set[str]:
    """The file of a Python function, through wrappers; empty for anything else."""
    if function is None:
        return set()
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return set()
    return set() if code.co_filename.startswith("<") else {code.co_filename}
