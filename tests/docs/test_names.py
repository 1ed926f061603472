"""Every file and every dotted name that a document names exists."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trtbuild"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "cache" / "README.md"]

#: Folders of the package, which documents name without the package's own name in front.
ROOMS = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
TREES = ["trtbuild", "tests", "benchmarks", "docs", "manifests"]

#: Files of a user's project in examples.
OF_USERS = {"model.py", "use.py"}


def spans(page: Path) -> list[str]:
    """The texts in backquotes, without blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [span for spans in re.findall(r"(`+)([^`]+)\1", text) for span in spans[1:]]


@cache
def file_names() -> frozenset[str]:
    """Names, without folders, of all Python files of the project."""
    return frozenset(path.name for tree in TREES for path in (ROOT / tree).rglob("*.py"))


def exists(path: str) -> bool:
    """Whether `path` is one of the project, or of the package."""
    return any((base / path).exists() for base in (ROOT, PACKAGE))


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one, at any depth."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_dotted_name_exists(page: Path) -> None:
    missing = []
    for span in spans(page):
        rooted = re.fullmatch(rf"(?:{'|'.join([*ROOMS, *TREES])})/[\w/.-]*", span)
        if rooted and span not in OF_USERS and not exists(span):
            missing.append(span)
        if re.fullmatch(r"[\w/]+\.py", span) and "/" not in span and span not in OF_USERS | file_names():
            missing.append(span)
        dotted = re.match(rf"(?:(trtbuild)|{'|'.join([*ROOMS, 'benchmarks', 'tests'])})(?:\.\w+)+", span)
        is_schema = dotted and re.match(r"/\d", span[dotted.end() :])
        if dotted and not is_schema and not re.search(r"\.(py|md|yaml|yml|lock|json|toml|bundle)\b", dotted[0]):
            name = dotted[0] if dotted[1] or dotted[0].startswith(("benchmarks", "tests")) else f"trtbuild.{dotted[0]}"
            if not resolves(name):
                missing.append(dotted[0])
    assert missing == []


def test_files_without_a_folder_are_in_the_folder_before_them() -> None:
    """In the table of the architecture, `a/b.py`, `c.py` are two files of one folder."""
    wrong = []
    for row in re.findall(r"^\| .*$", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE):
        folders: list[Path] = []
        for span in re.findall(r"`([\w/]+(?:\.py|/))`", row):
            if "/" in span:
                path = PACKAGE / span if (PACKAGE / span).exists() else ROOT / span
                folders.append(path if path.is_dir() else path.parent)
            elif not any((folder / span).exists() for folder in (*folders[-1:], PACKAGE)):
                wrong.append(f"{span} in {[folder.name for folder in folders]}")
    assert wrong == []


def test_the_walk_of_a_build_names_functions_and_counts_them() -> None:
    """The list "From the command to the compiler" of the architecture: each item begins with a file and its function."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## From the command to the compiler\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`: `([\w.]+)`", section, re.MULTILINE)
    assert len(steps) == 10 and "calls ten functions" in section
    assert len({path for path, _ in steps}) == 9 and "in nine files" in section
    for path, name in steps:
        module = path.removesuffix(".py").replace("/", ".")
        assert resolves(f"trtbuild.{module}.{name}"), (path, name)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert not exists("driver/nothing.py")
    assert exists("driver/building/executor.py")
    assert not resolves("trtbuild.core.planning.nothing")
    assert resolves("trtbuild.core.recipes.keys.STEP_VERSIONS")
