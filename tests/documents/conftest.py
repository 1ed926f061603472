"""Runs every command once with ``--json`` on a small project, and keeps the output by a name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project, edit

#: A second model, whose trace fails: text to add, by file.
BROKEN = {
    "nets.py": '\n\ndef broken():\n    raise ValueError("no weights")\n',
    "trtbuild.yaml": """\
  broken:
    source: {python: "nets:broken"}
    inputs: {x: {}}
    profiles: [rows]
    outputs: {package: dist/broken}
""",
}


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Standard output of each command, by the name of its recorded form."""
    base = tmp_path_factory.mktemp("documents")
    project, remotes = base / "project", {"TRTBUILD_REMOTES": f"team=rw:file://{base / 'remote'}"}
    copy_project("torch_partition", project)
    for name, text in BROKEN.items():
        (project / name).write_text((project / name).read_text() + text)
    (base / "begun").mkdir()
    line = CommandLine(project, base / "cache")
    found: dict[str, str] = {}

    def say(name: str, *arguments: str, expect: int = 0, environment: dict[str, str] | None = None) -> None:
        done = line.run(*arguments, "--json", environment=environment)
        assert done.returncode == expect, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        found[name] = done.stdout

    say("version", "--version")
    say("init", "-C", str(base / "begun"), "init")
    say("doctor", "doctor")
    say("plan-of-a-new-project", "plan")
    say("status-of-a-new-project", "status")
    say("build", "build", "ranker", environment=remotes)
    say("build-that-fails", "build", expect=1)
    say("build-with-nothing-to-do", "build", "ranker")
    say("build-with-an-unknown-model", "build", "rankr", expect=2)
    say("build-frozen", "build", "broken", "--frozen", expect=3)
    say("plan", "plan", "ranker", environment=remotes)
    say("why", "why", "ranker")
    say("graph", "graph", "ranker")
    say("status", "status")
    _packages(say, project)
    _cache(say, base, remotes)
    _change(project)
    say("why-after-a-change", "why", "ranker")
    say("diff", "diff", "dist/ranker", "ranker", expect=1)
    say("lock-out-of-date", "lock", "ranker", "--check", expect=1)
    shutil.rmtree(base)
    return found


def _packages(say: Callable[..., None], project: Path) -> None:
    say("inspect", "inspect", "ranker")
    say("inspect-of-the-project", "inspect")
    say("inspect-with-memory", "inspect", "dist/ranker", "--memory", "--onnx", str(project / "onnx"))
    say("run", "run", "ranker", "--device", "cpu", "--input", "x=random:2x8")
    say("bench", "bench", "ranker", "--device", "cpu", "--duration", "0.01", "--warmup", "0", "--eager")
    say("verify", "verify", "ranker", "--points", "1")
    say("verify-of-verified", "verify", "ranker", "--points", "1")
    say("verify-of-a-failure", "verify", "--points", "1", expect=1)
    say("inspect-of-verified", "inspect", "ranker")
    say("build-and-verify", "build", "ranker", "--verify")
    say("diff-of-the-same", "diff", "dist/ranker", "ranker")
    say("lock", "lock", "ranker")
    say("lock-up-to-date", "lock", "ranker", "--check")


def _cache(say: Callable[..., None], base: Path, remotes: dict[str, str]) -> None:
    say("cache-stats", "cache", "stats")
    say("cache-verify", "cache", "verify")
    say("cache-verify-and-rebuild", "cache", "verify", "--rebuild", "100%")
    say("cache-gc", "cache", "gc", "--dry-run")
    say("cache-gc-of-a-directory", "cache", "gc", "--dir", str(base / "remote"))
    say("cache-keygen", "cache", "keygen", "--out", str(base / "key"))
    say("cache-push", "cache", "push", "ranker", environment=remotes)
    say("cache-push-of-a-failure", "cache", "push", environment=remotes, expect=1)
    say("cache-pull", "cache", "pull", "ranker", environment={**remotes, "TRTBUILD_CACHE_DIR": str(base / "another")})
    say("cache-pull-of-a-failure", "cache", "pull", environment=remotes, expect=1)
    say("cache-export", "cache", "export", str(base / "bundle"), "ranker")
    say("cache-import", "cache", "import", str(base / "bundle"))


def _change(project: Path) -> None:
    edit(project / "nets.py", "nn.Linear(16, 4)", "nn.Linear(16, 5)")
