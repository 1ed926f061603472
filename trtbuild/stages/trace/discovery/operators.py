"""Find the implementations of custom operators: the files or distributions that their digests cover.

Rules
1. While user code runs, registrations of operators are recorded, with the file of the implementation: the source file of
   a Python function, or a library that ``torch.ops.load_library`` or the import of an extension module loads.
2. The digest of an operator of an installed distribution covers the name and the state of the distribution (`observe`).
3. The digest of a user's operator covers whole files, so any edit of a file that defines the operator changes it.
4. If the implementation of an operator cannot be found, its digest is `UNKNOWN_IMPLEMENTATION`, and the trace is not
   cacheable.
5. A module registers an operator if its code calls torch to define the operator or to load the operator's library. An
   extension module registers the operators that appear when it is imported. It is an error if two modules register an
   operator that the program calls: the last one replaces the first, and a process that loads a package could get either.
"""

from __future__ import annotations

import hashlib
import inspect
import mmap
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any

import torch

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.errors import SourceError
from trtbuild.stages.program.custom_operators import has_cpu_kernel
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import file_digest, installed_state, installed_version

UNKNOWN_IMPLEMENTATION = "unknown"


class Operators:
    """Records the registrations of operators between `install` and `remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._operator_files: dict[str, set[str]] = {}
        self._undo: list[Callable[[], None]] = []
        #: Name of an operator without its overload → the modules that define it, in the order of definition (rule 5).
        self._modules: dict[str, list[str]] = {}
        #: Name of a custom operator of the program, with its overload → the digest of the implementation.
        self.digests: dict[str, str] = {}

    def install(self) -> None:
        library: Any = torch.library.Library
        record_source = self._record_source
        record_module = self._record_module
        original_define, original_impl, original_load = library.define, library.impl, torch.ops.load_library
        original_create = ExtensionFileLoader.create_module

        def define(self: Any, schema: str, *args: Any, **kwargs: Any) -> Any:
            record_module(f"{self.ns}::{schema.partition('(')[0].strip().partition('.')[0]}", _calling_module())
            return original_define(self, schema, *args, **kwargs)

        def impl(self: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            name = op_name if isinstance(op_name, str) else op_name._schema.name
            record_source(name if "::" in name else f"{self.ns}::{name}", fn)
            return original_impl(self, op_name, fn, *args, **kwargs)

        def load_library(path: Any) -> Any:
            return self._record_new(lambda: original_load(path), str(path), _calling_module())

        def create_module(loader: ExtensionFileLoader, spec: ModuleSpec) -> Any:
            if not _names_torch(str(loader.path)):
                return original_create(loader, spec)
            return self._record_new(lambda: original_create(loader, spec), str(loader.path), spec.name)

        library.define = define
        library.impl = impl
        loader: Any = ExtensionFileLoader
        loader.create_module = create_module
        torch.ops.load_library = load_library
        self._undo.append(lambda: setattr(library, "define", original_define))
        self._undo.append(lambda: setattr(library, "impl", original_impl))
        self._undo.append(lambda: setattr(ExtensionFileLoader, "create_module", original_create))
        self._undo.append(lambda: setattr(torch.ops, "load_library", original_load))

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def implementation_digest(self, name: str) -> str:
        """The digest of the implementation of ``namespace.operator.overload``. The text of the program contains it, so a
        changed implementation changes the program's digest."""
        if name not in self.digests:
            self.digests[name] = self._digest(name)
        return self.digests[name]

    def describe(self) -> list[CustomOperator]:
        """The custom operators of the program. Raises SourceError if two modules define one of them (rule 5)."""
        return [self._describe(name) for name in sorted(self.digests)]

    def _describe(self, name: str) -> CustomOperator:
        namespace, operator = name.split(".")[:2]
        modules = self._modules.get(f"{namespace}::{operator}", [])
        if len(modules) > 1:
            raise SourceError(
                f"the operator {namespace}::{operator} is registered by {' and by '.join(modules)}: the last one replaces "
                "the others",
                code="operator-registered-twice",
                hint="give one of the operators another name",
            )
        module = modules[0] if modules else None
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        distribution = self._recorder.owners.of(file).distribution if isinstance(file, str) else None
        version = None if distribution is None else installed_version(distribution)
        return custom_operator(name, module, distribution, version)

    def _record_new(self, load: Callable[[], Any], file: str, module: str | None) -> Any:
        """Call `load`, and record `file` and `module` for each operator that it adds to torch."""
        before = set(torch._C._dispatch_get_all_op_names())
        result = load()
        for name in set(torch._C._dispatch_get_all_op_names()) - before:
            self._operator_files.setdefault(name.split(".")[0], set()).add(file)
            self._record_module(name.split(".")[0], module)
        return result

    def _record_module(self, qualified_name: str, module: str | None) -> None:
        modules = self._modules.setdefault(qualified_name, [])
        if module is not None and module not in modules:
            modules.append(module)

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
            owner = self._recorder.owners.of(file)
            if owner.distribution is not None and owner.distribution != "torch":
                self._recorder.record_distribution(owner.distribution)
                implementations.append(f"{owner.distribution} {installed_state(owner.distribution)}")
            elif owner.kind == "user":
                self._recorder.record_file(file)
                implementations.append(file_digest(file) or UNKNOWN_IMPLEMENTATION)
        if not implementations or UNKNOWN_IMPLEMENTATION in implementations:
            self._recorder.refuse_storage(f"the implementation of operator {qualified_name} cannot be found")
            return UNKNOWN_IMPLEMENTATION
        return hashlib.sha256("\n".join(sorted(set(implementations))).encode()).hexdigest()

    def _record_source(self, qualified_name: str, function: Any) -> None:
        self._operator_files.setdefault(qualified_name.split(".")[0], set()).update(_source_file(function))


def custom_operator(
    name: str, module: str | None, distribution: str | None = None, version: str | None = None
) -> CustomOperator:
    """Describe the operator ``namespace.operator.overload``, which `module` registers in this process."""
    namespace, operator, overload = name.split(".")
    schema = str(getattr(getattr(getattr(torch.ops, namespace), operator), overload)._schema)
    return CustomOperator(name, schema, module, distribution, version, has_cpu_kernel(name))


def _names_torch(file: str) -> bool:
    """Whether the bytes of a library contain the name ``torch``, as in every library that registers operators.

    The import of a library without this name adds no operators, so torch's operators need not be listed before and after
    it. A list takes 3 ms, and many models import a hundred libraries. True if the file cannot be read."""
    try:
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"torch") >= 0
    except (OSError, ValueError):
        return True


def _calling_module() -> str | None:
    """The name of the module whose code calls torch: the innermost one outside torch, ctypes and trtbuild.

    None for the main module, and if there is no such module."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] not in ("torch", "trtbuild", "ctypes"):
            return None if name in ("", "__main__") else name
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _source_file(function: Any) -> set[str]:
    """The file of a Python function, or of the function that its decorators wrap; an empty set if no file is known."""
    if function is None:
        return set()
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return set()
    return set() if code.co_filename.startswith("<") else {code.co_filename}
