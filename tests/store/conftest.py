"""What the store's tests share: values, aging of entries, and real child processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Output, Record
from trtbuild.store.local import LocalStore

MIB = 1 << 20


@pytest.fixture
def payload() -> Callable[[int, int], bytes]:
    """Pseudorandom bytes, by seed and size."""
    return lambda seed, size: random.Random(seed).randbytes(size)


@pytest.fixture
def record_of() -> Callable[..., Record]:
    """A record of a recipe that is told apart by a number."""

    def make(number: int, *, stage: str = "engine", who: str = "me", **outputs: Output) -> Record:
        return Record(Recipe(stage, 1, (("number", number),)), outputs, {"who": who})

    return make


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def entry_path() -> Callable[[LocalStore, str, str], Path]:
    return lambda store, kind, name: store.root / kind / name[:2] / name


@pytest.fixture
def age() -> Callable[[LocalStore, float], None]:
    """Make every entry of a store look as if it was last used some seconds ago."""

    def shift(store: LocalStore, seconds: float) -> None:
        for path in [*store.root.glob("cas/*/*"), *store.root.glob("ac/*/*")]:
            then = path.stat().st_mtime_ns - int(seconds * 1e9)
            os.utime(path, ns=(then, then))

    return shift


class Child:
    """A Python process that runs some code, and talks over its pipes, line by line."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> list[str]:
        """SIGKILL; the lines that it wrote before."""
        self.process.kill()
        rest, _ = self.process.communicate()
        return rest.splitlines()

    def finish(self) -> str:
        out, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return out


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        started.append(Child(code, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
