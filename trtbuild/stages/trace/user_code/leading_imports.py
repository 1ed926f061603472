"""Find the imports of installed libraries with which the code of a source begins.

A process that stays between builds imports these libraries once (`trtbuild.stages.trace.discovery.preloading`). This is
allowed only if the code does nothing else before these imports. So the search follows the statements in the order in which
Python executes them, and ends at the first statement that may do anything else.

Rules
1. The search follows imports. It skips docstrings, ``pass``, blocks ``if TYPE_CHECKING:`` without ``else``, assignments of
   literals to names, and functions whose defaults are literals. An assigned name must not begin with ``__``; ``__all__`` is
   allowed. A function must not have decorators or type parameters. Annotations must not be evaluated. The search ends at
   every other statement.
2. At an import of a project's module, the search continues with the statements of this module. The search ends if this is
   not possible: at ``import *``, at an extension module, at a file that cannot be parsed, and at a name of which only the
   first part is in the project.
3. The result lists the steps of the execution up to the last import of a library: the files of the project that Python
   runs, with their digests, and the imports. A trace checks that Python really executes these steps (`Follower`). So an
   error in this search costs time, but changes no result.

The parent process of a trace imports this module, too. So this module does not import torch.
"""

# Paths are strings here: their exact spelling counts.
# ruff: noqa: PTH110, PTH112, PTH113

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES

from trtbuild.core.model.spec import Source

#: Libraries that a trace has loaded before it runs the code of a source.
_LOADED = frozenset({"torch", "numpy"})


@dataclass(frozen=True)
class Code:
    """A step of the execution: Python runs the file `path` of the project, whose bytes have this SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Import:
    """A step of the execution: code of the project imports a module. The first three fields are arguments of
    ``__import__``. `statement` is the position in `LeadingImports.statements`, None for a module of the project."""

    name: str
    names: tuple[str, ...]
    level: int
    statement: int | None


@dataclass(frozen=True)
class LeadingImports:
    """The imports with which the code of a source begins."""

    #: The imports of modules from outside the project, as source text.
    statements: tuple[str, ...]
    #: All steps up to the last of these imports.
    steps: tuple[Code | Import, ...]


class UnfitLibraries(Exception):
    """The code of a source does not begin with the imports that this process has executed in advance."""


def leading_imports(source: Source, project: str) -> LeadingImports | None:
    """Return the imports with which the code of `source` begins. None if they import only the standard library and
    libraries that each trace has loaded. Also None for a source that is not ``python:``. `project` is an absolute path."""
    if source.kind != "python":
        return None
    search = _Search([os.path.normpath(os.path.join(project, root)) for root in source.roots])
    search.import_module(source.target.partition(":")[0])
    positions_of_libraries = [
        position
        for position, step in enumerate(search.steps)
        if isinstance(step, Import)
        and step.statement is not None
        and step.name.partition(".")[0] not in sys.stdlib_module_names | _LOADED
    ]
    if not positions_of_libraries:
        return None
    steps = search.steps[: positions_of_libraries[-1] + 1]
    count = sum(isinstance(step, Import) and step.statement is not None for step in steps)
    return LeadingImports(tuple(search.statements[:count]), tuple(steps))


class _Search:
    def __init__(self, roots: Sequence[str]) -> None:
        self.statements: list[str] = []
        self.steps: list[Code | Import] = []
        #: False after the end of the search.
        self.is_open = True
        self._roots = list(roots)
        #: Module of the project → the directories of its submodules.
        self._folders: dict[str, list[str]] = {"": self._roots}
        #: Module of the project → the names that its statements have bound.
        self._bound: dict[str, set[str]] = {}

    def import_module(self, name: str) -> bool:
        """Follow the import of a module, and of the packages around it. Returns False if it is not in the project."""
        parent = ""
        for part in name.split("."):
            module = f"{parent}.{part}".lstrip(".")
            if module not in self._folders and not self._execute(parent, part, module):
                return False
            self._bound.setdefault(parent, set()).add(part)
            if not self.is_open:
                return True
            parent = module
        return True

    def _execute(self, parent: str, part: str, module: str) -> bool:
        """Find a module in the directories of its parent, and follow its statements. Returns False if the project does not
        have this module."""
        portions = []
        for directory in self._folders[parent]:
            base = os.path.join(directory, part)
            if any(os.path.exists(base + suffix) for suffix in EXTENSION_SUFFIXES):
                self.is_open = False
                return True
            for file, folders in ((os.path.join(base, "__init__.py"), [base]), (base + ".py", [])):
                if os.path.isfile(file):
                    self._folders[module] = folders
                    self._read(file, module, module if folders else parent)
                    return True
            if os.path.isdir(base):
                portions.append(base)
        if not portions:
            return False
        self._folders[module] = portions  # a namespace package, if no installed package has this name
        return True

    def _read(self, path: str, module: str, package: str) -> None:
        try:
            with open(path, "rb") as file:
                data = file.read()
            statements = ast.parse(data).body
        except (OSError, SyntaxError, ValueError):
            self.is_open = False
            return
        self.steps.append(Code(path, hashlib.sha256(data).hexdigest()))
        bound = self._bound.setdefault(module, set())
        is_postponed = any(
            isinstance(statement, ast.ImportFrom)
            and statement.module == "__future__"
            and any(alias.name == "annotations" for alias in statement.names)
            for statement in statements
        )
        for statement in statements:
            if isinstance(statement, ast.Import):
                self._follow_import(statement, bound)
            elif isinstance(statement, ast.ImportFrom):
                self._follow_import_from(statement, package, bound)
            elif _is_harmless(statement, is_postponed):
                bound.update(_bound_names(statement))
            else:
                self.is_open = False
            if not self.is_open:
                return

    def _follow_import(self, statement: ast.Import, bound: set[str]) -> None:
        for alias in statement.names:
            if self.is_open:
                self._follow(f"import {alias.name}", alias.name, alias.name, (), 0)
                bound.add(alias.asname or alias.name.partition(".")[0])

    def _follow_import_from(self, statement: ast.ImportFrom, package: str, bound: set[str]) -> None:
        names = tuple(alias.name for alias in statement.names)
        parents = package.split(".")
        if "*" in names or statement.level > len(parents) or (statement.level and not package):
            self.is_open = False
            return
        base = ".".join(parents[: len(parents) - statement.level + 1]) if statement.level else ""
        module = f"{base}.{statement.module or ''}".strip(".")
        text = f"from {module} import {', '.join(names)}"
        if self._follow(text, module, statement.module or "", names, statement.level):
            for name in names:  # Python imports a submodule if the module has no attribute of this name
                if self.is_open and name not in self._bound.get(module, ()):
                    self.import_module(f"{module}.{name}")
        bound.update(alias.asname or alias.name for alias in statement.names)

    def _follow(self, text: str, module: str, name: str, names: tuple[str, ...], level: int) -> bool:
        """Add the step of an import. Returns False if the import is added to `statements`."""
        position = len(self.steps)
        self.steps.append(Import(name, names, level, None))
        if self.import_module(module):
            return True
        if level or len(self.steps) > position + 1:  # only a part of the name is in the project
            self.is_open = False
            return True
        self.steps[position] = Import(name, names, level, len(self.statements))
        self.statements.append(text)
        return False


def _is_harmless(statement: ast.stmt, is_postponed: bool) -> bool:
    """Whether a statement does nothing, or only binds names to new values (rule 1). `is_postponed` says that
    annotations are not evaluated."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(_is_plain_name(target) for target in statement.targets) and _is_literal(statement.value)
    if isinstance(statement, ast.AnnAssign):
        return is_postponed and _is_plain_name(statement.target) and _is_literal(statement.value)
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING") and not statement.orelse
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        annotations = [statement.returns, *(parameter.annotation for parameter in parameters if parameter is not None)]
        return (
            not statement.decorator_list
            and not getattr(statement, "type_params", [])
            and all(map(_is_literal, [*arguments.defaults, *arguments.kw_defaults]))
            and (is_postponed or not any(annotations))
        )
    return False


def _is_plain_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and (not target.id.startswith("__") or target.id == "__all__")


def _is_literal(value: ast.expr | None) -> bool:
    try:
        ast.literal_eval(value if value is not None else ast.Constant(None))
    except (ValueError, TypeError):
        return False
    return True


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return [statement.name] if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else []
