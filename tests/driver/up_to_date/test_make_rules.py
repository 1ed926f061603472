"""The rules that trtbuild writes are read by the real make."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from trtbuild.driver.up_to_date.make_rules import ALWAYS, can_be_written, escape, rules_text

MAKEFILE = "all: out\nout:\n\t@echo ran >> log; touch out\n-include out.d\n"
LETTERS = "ab #$:%*?[]~\\\\\\!@&,'\"{}é"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs GNU make")


class Make:
    """A directory with a makefile that builds ``out`` and includes the depfile ``out.d``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "Makefile").write_text(MAKEFILE)

    def write(self, names: list[str], *, always: bool = False) -> None:
        (self.folder / "out.d").write_text(rules_text(["out"], names, always=always))

    def run(self) -> int:
        """Run make, and return how often the recipe has run so far."""
        process = subprocess.run(
            ["make", "-rR"], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert process.returncode == 0, f"{(self.folder / 'out.d').read_text()}\n{process.stderr}"
        assert not process.stderr
        log = self.folder / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return Make(tmp_path)


def create_old(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (1000, 1000))


def nasty_names() -> list[str]:
    """Names that a makefile can contain, with characters that are special in make or in a shell."""
    seeded = random.Random(4)
    drawn = {"".join(seeded.choices(LETTERS, k=seeded.randint(1, 8))) for _ in range(300)}
    single = {shape.replace("_", letter) for letter in LETTERS for shape in ("a_b.py", "_b.py", "a.py_", "a__b", "_")}
    return sorted(name for name in drawn | single if name not in (".", "..") and can_be_written(name))


def test_make_detects_newer_and_missing_files_of_any_name_that_can_be_written(make: Make) -> None:
    names = nasty_names()
    assert len(names) > 200
    for name in names:
        create_old(make.folder / "src" / name)
    make.write([f"src/{name}" for name in names])
    expected = 1
    assert make.run() == expected
    assert make.run() == expected
    # only about 40 names are tried one by one, because each try is a run of make
    for name in names[:: len(names) // 40]:
        path = make.folder / "src" / name
        os.utime(path)
        os.utime(make.folder / "out", (2000, 2000))
        expected += 1
        assert make.run() == expected, f"{name!r} is newer, and was not seen"
        create_old(path)
        assert make.run() == expected, f"{name!r} is older, but make ran the recipe"
        path.unlink()
        expected += 1
        assert make.run() == expected, f"{name!r} is gone, and this was not seen"
        create_old(path)
    shutil.rmtree(make.folder / "src")
    assert make.run() == expected + 1


@pytest.mark.parametrize("name", nasty_names()[::7])
def test_make_detects_a_newer_and_a_missing_file_beside_the_makefile(make: Make, name: str) -> None:
    create_old(make.folder / name)
    make.write([name])
    assert make.run() == 1
    assert make.run() == 1
    os.utime(make.folder / "out", (500, 500))
    assert make.run() == 2
    (make.folder / name).unlink()
    assert make.run() == 3
    assert sorted(path.name for path in make.folder.iterdir()) == ["Makefile", "log", "out", "out.d"]


@pytest.mark.parametrize("name", ["a=b", "a;b", "a|b", "lib(x)", "a\tb", "a\nb", "ab&", "ab ", "a\\ b", "ab\\"])
def test_a_prerequisite_that_cannot_be_written_is_always_out_of_date(make: Make, name: str) -> None:
    assert not can_be_written(name)
    for each in (name, "other"):
        create_old(make.folder / each)
    make.write([name, "other"])
    assert [make.run(), make.run()] == [1, 2]


def test_a_rule_with_always_runs_each_time(make: Make) -> None:
    make.write([], always=True)
    assert [make.run(), make.run()] == [1, 2]
    assert ALWAYS in (make.folder / "out.d").read_text()


def test_several_targets_with_nasty_names_have_the_same_prerequisites(tmp_path: Path) -> None:
    targets = ["out put/in dex.json", "50%", "a#b", "c:d", "e$f", "back\\slash"]
    for target in [*targets, "src"]:
        create_old(tmp_path / target)
    (tmp_path / "Makefile").write_text(
        "all: " + " ".join(escape(target, "prerequisite") for target in targets) + " ; @true\n"
        "%: ; @echo ran >> log\n" + rules_text(targets, ["src"])
    )
    os.utime(tmp_path / "src", (2000, 2000))
    subprocess.run(["make", "-rR"], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    assert len((tmp_path / "log").read_text().splitlines()) == len(targets)


def test_rejects_a_target_that_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="a=b"):
        rules_text(["a=b"], [])
