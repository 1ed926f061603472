"""Find the implementations of custom operators: the files or distributions that their digests cover.

Rules
1. Registrations of operators while user code runs are recorded. If the implementation is a Python function, its source
   file is recorded. If ``torch.ops.load_library`` loads the operator from a library, the file of the library is recorded.
2. The digest of an operator of an installed distribution covers the name and version of the distribution.
3. The digest of an operator of the user covers whole files: any edit of a file that defines the operator changes the
   digest.
4. If the implementation of an operator cannot be found, its digest is `UNKNOWN_IMPLEMENTATION`, and the trace is not
   cacheable.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import file_digest, installed_version

UNKNOWN_IMPLEMENTATION = "unknown"


class Operators:
    """Records the registrations of operators between `install` and `remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._operator_files: dict[str, set[str]] = {}
        self._undo: list[Callable[[], None]] = []
        #: Name of a custom operator of the program, with its overload → the digest of the implementation.
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
                self._operator_files.setdefault(name.split(".")[0], set()).add(str(path))
            return result

        library.impl = impl
        torch.ops.load_library = load_library
        self._undo.append(lambda: setattr(library, "impl", original_impl))
        self._undo.append(lambda: setattr(torch.ops, "load_library", original_load))

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def implementation_digest(self, name: str) -> str:
        """The digest of the implementation of ``namespace.operator.overload``. `program_text` writes it into the canonical
        text."""
        if name not in self.digests:
            self.digests[name] = self._digest(name)
        return self.digests[name]

    def _digest(self, name: str) -> str:
        namespace, operator = name.split(".")[:2]
        qualified_name = f"{namespace}::{operator}"
        files = set(self._operator_files.get(qualified_name, ()))
        definition: Any = torch._library.custom_ops.OPDEFS.get(qualified_name)
        if definition is not None:
            kernels = list(getattr(definition, "_backend_fns", {}).values())
            for function in (definition._init_fn, getattr(definition, "_abstract_fn", None), *kernels):
                files |= _source_file(function)
        implementations = []
        for file in sorted(files):
            place = self._recorder.places.of(file)
            if place.distribution is not None and place.distribution != "torch":
                self._recorder.record_distribution(place.distribution)
                implementations.append(f"{place.distribution} {installed_version(place.distribution)}")
            elif place.owner == "user":
                self._recorder.record_file(file)
                implementations.append(file_digest(file) or UNKNOWN_IMPLEMENTATION)
        if not implementations or UNKNOWN_IMPLEMENTATION in implementations:
            self._recorder.refuse_storage(f"the implementation of operator {qualified_name} cannot be found")
            return UNKNOWN_IMPLEMENTATION
        return hashlib.sha256("\n".join(sorted(set(implementations))).encode()).hexdigest()

    def _record_source(self, qualified_name: str, function: Any) -> None:
        self._operator_files.setdefault(qualified_name.split(".")[0], set()).update(_source_file(function))


def _source_file(function: Any) -> set[str]:
    """The file that defines a Python function, or the function inside its decorators; empty for any other object."""
    if function is None:
        return set()
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return set()
    return set() if code.co_filename.startswith("<") else {code.co_filename}
