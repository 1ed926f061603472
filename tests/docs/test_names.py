"""Every file and every dotted name in a document exists."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import SLOWEST

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trtbuild"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "cache" / "README.md"]

#: Folders of the package. Documents name them without `trtbuild/` in front.
FOLDERS = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
TREES = ["trtbuild", "tests", "benchmarks", "docs", "manifests"]

#: Files of a user's project, which examples in the documents name.
FILES_OF_USERS = {"model.py", "use.py"}


def spans(page: Path) -> list[str]:
    """Return the texts in backquotes, except those in blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [span for groups in re.findall(r"(`+)([^`]+)\1", text) for span in groups[1:]]


@cache
def words_of(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text("utf-8")))


@cache
def file_names() -> frozenset[str]:
    """Return the names, without folders, of all Python files. ``.work`` has files of other projects."""
    return frozenset(path.name for tree in TREES for path in (ROOT / tree).rglob("*.py") if ".work" not in path.parts)


def exists(path: str) -> bool:
    """Return whether `path` exists in the project or in the package."""
    return any((base / path).exists() for base in (ROOT, PACKAGE))


def resolves(dotted: str) -> bool:
    """Return whether a module, or a name such as ``module.Class.method``, exists."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            resolved = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(resolved, name):
                return False
            resolved = getattr(resolved, name)
        return True
    return False


def missing_names(span: str) -> Iterator[str]:
    """Yield the paths, Python files and dotted names in a text in backquotes that do not exist."""
    if span in FILES_OF_USERS:
        return
    if re.fullmatch(rf"(?:{'|'.join([*FOLDERS, *TREES])})/[\w/.-]*", span) and not exists(span):
        yield span
    if re.fullmatch(r"\w+\.py", span) and span not in file_names():
        yield span
    dotted = re.match(rf"(?:(trtbuild)|{'|'.join([*FOLDERS, 'benchmarks', 'tests'])})(?:\.\w+)+", span)
    if dotted is None or re.search(r"\.(py|md|yaml|yml|lock|json|toml|bundle)\b", dotted[0]):
        return  # the name of a file
    if re.match(r"/\d", span[dotted.end() :]):
        return  # the name of a schema, such as `trtbuild.build/1`
    begins_with_package = dotted[1] or dotted[0].startswith(("benchmarks", "tests"))
    if not resolves(dotted[0] if begins_with_package else f"trtbuild.{dotted[0]}"):
        yield dotted[0]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_dotted_name_exists(page: Path) -> None:
    assert [name for span in spans(page) for name in missing_names(span)] == []


def files_in_tables() -> Iterator[tuple[str, Path | None, list[str]]]:
    """Yield each file or folder in the tables of docs/architecture.md: its text, its path, and the names in parentheses.

    The path is None if there is no such file. In ``a/b.py``, ``c.py``, the second file is in the folder of the first.
    """
    for row in re.findall(r"^\| .*$", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE):
        folder = PACKAGE
        for span, note in re.findall(r"`([\w/]+(?:\.py|/))`(?: \(([^)]*)\))?", row):
            bases = (PACKAGE, ROOT) if "/" in span else (folder, PACKAGE)
            path = next((base / span for base in bases if (base / span).exists()), None)
            if path is not None and "/" in span:
                folder = path if path.is_dir() else path.parent
            yield span, path, re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", note)


def test_a_file_without_a_folder_is_in_the_folder_of_the_file_before_it() -> None:
    assert [span for span, path, _ in files_in_tables() if path is None] == []


def test_names_in_parentheses_are_in_the_file_before_them() -> None:
    pairs = [(path, name) for _, path, names in files_in_tables() if path and path.is_file() for name in names]
    assert len(pairs) > 60
    missing = [(path, name) for path, name in pairs if not words_of(path).issuperset(name.split("."))]
    assert missing == []


def test_the_list_of_functions_that_a_build_calls_is_right() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## From the command to the compiler\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`: `([\w.]+)`", section, re.MULTILINE)
    assert len(steps) == 10 and "calls ten functions" in section
    assert len({path for path, _ in steps}) == 9 and "in nine files" in section
    for path, name in steps:
        module = path.removesuffix(".py").replace("/", ".")
        assert resolves(f"trtbuild.{module}.{name}"), (path, name)


def test_names_that_do_not_exist_are_recognized() -> None:
    for span in ("driver/nothing.py", "nothing_at_all.py", "core.planning.nothing", "trtbuild.core.planning.nothing"):
        assert list(missing_names(span)) == [span]
    for span in (
        "driver/building",
        "executor.py",
        "core.recipes.keys",
        "trtbuild.build/1",
        "trtbuild.yaml",
        "model.py",
    ):
        assert list(missing_names(span)) == []
    assert not exists("driver/nothing.py")
    assert exists("driver/building/execution/executor.py")
    assert not resolves("trtbuild.core.planning.nothing")
    assert resolves("trtbuild.core.recipes.keys.STEP_VERSIONS")


def test_the_files_that_the_test_run_starts_first_exist() -> None:
    assert [name for name in SLOWEST if not (ROOT / "tests" / name).is_file()] == []
