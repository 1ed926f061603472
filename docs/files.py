"""Makes the text of docs/files.md: the source files, each with its subject, its public names and its constants.

The code is parsed and never imported, so this module needs neither torch nor TensorRT.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trtbuild"

#: The folders of trtbuild/, from the top layer to the bottom layer.
LAYERS = ("cli", "driver", "manifest", "store", "stages", "toolchain", "runtime", "core")

INTRODUCTION = """\
# Source files

{note}

This page lists the source files of trtbuild, each with its subject, its public functions and classes, and its constants.
To find the file for a change, search the page for the noun of the behaviour, for example "retry" or "pager". Search for a
part of a word, because a name may have another ending. Paths are relative to `trtbuild/`, except those that begin with
`benchmarks/`, `docs/` or `tests/`. [Where things are](architecture.md#where-things-are) is a shorter list by subject.
"""

TESTS = """\
The tests of a module are in the same folder below `tests/`, in a file with `test_` before the module's name. This section
lists the other tests, and the helpers of tests.
"""


def files(note: str) -> str:
    """Return the text of docs/files.md. `note` is a comment at its top."""
    parts = [INTRODUCTION.format(note=note), "## trtbuild", _lines(PACKAGE, PACKAGE.glob("*.py"))]
    layers = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert layers == set(LAYERS), "LAYERS has to list the folders of trtbuild/"
    for layer in LAYERS:
        parts += _tree(PACKAGE / layer, PACKAGE)
    parts += _tree(ROOT / "benchmarks", ROOT)
    parts += ["## docs", _lines(ROOT, (ROOT / "docs").glob("*.py"))]
    parts += ["## tests", TESTS, _lines(ROOT, filter(_is_listed_test, (ROOT / "tests").rglob("*.py")))]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _tree(top: Path, base: Path) -> Iterable[str]:
    """Yield a heading, the subject and the files for `top` and for each folder in it."""
    by_folder = defaultdict(list)
    for path in top.rglob("*"):
        if path.suffix in (".py", ".js") and ".work" not in path.parts:
            by_folder[path.parent].append(path)
    for folder in sorted(by_folder):
        yield f"{'##' if folder == top else '###'} {folder.relative_to(base)}"
        yield _subject(folder / "__init__.py")
        yield _lines(base, by_folder[folder])


def _lines(base: Path, paths: Iterable[Path]) -> str:
    """Return a list with one line for each file. An `__init__.py` is listed only if it defines names."""
    lines = []
    for path in sorted(paths):
        has_names = path.suffix == ".py" and not path.name.startswith("test_")
        names = ", ".join(_names(path)) if has_names else ""
        if path.name != "__init__.py" or names:
            lines.append(f"* `{path.relative_to(base)}`: {_subject(path)}" + (f" `{names}`" if names else ""))
    return "\n".join(lines)


def _is_listed_test(path: Path) -> bool:
    """Return whether the page lists a test. It omits example projects, and tests named after a module or a folder."""
    folder = path.parent.relative_to(ROOT / "tests")
    module = PACKAGE / folder / path.name.removeprefix("test_")
    is_project = folder.parts[:1] == ("projects",) and path.name != "__init__.py"
    leads_to_module = path.name.startswith("test_") and (module.exists() or module.with_suffix("").is_dir())
    return not is_project and not leads_to_module


def _subject(path: Path) -> str:
    """Return the first sentence of a module's docstring, or of the comment at the top of a script."""
    text = path.read_text(encoding="utf-8")
    comment = " ".join(line.removeprefix("//") for line in text.partition("\n\n")[0].splitlines())
    text = ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else comment
    assert text, f"{path} has no docstring"
    paragraph = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[.!?]) (?=[A-Z`(])", paragraph)[0]


def _names(path: Path) -> Iterable[str]:
    """Yield the public functions and classes of a module, and its constants.

    Private constants are included, because many limits are private. Constants in tuple assignments are left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name.isupper() and len(name) > 1 and name != "TYPE_CHECKING")
