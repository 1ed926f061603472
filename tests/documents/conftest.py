"""Runs commands with ``--json`` on a small project in several states."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project, edit

#: File → the text to add to it. The texts define a second model, whose trace fails.
BROKEN_MODEL = {
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
def document_texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name of a file in `forms/` → the standard output of its command."""
    base = tmp_path_factory.mktemp("documents")
    project, remotes = base / "project", {"TRTBUILD_REMOTES": f"team=rw:file://{base / 'remote'}"}
    copy_project("torch_partition", project)
    for name, text in BROKEN_MODEL.items():
        (project / name).write_text((project / name).read_text() + text)
    (base / "empty").mkdir()
    trtbuild = CommandLine(project, base / "cache")
    outputs: dict[str, str] = {}

    def record(name: str, *arguments: str, expect: int = 0, environment: dict[str, str] | None = None) -> None:
        process = trtbuild.run(*arguments, "--json", environment=environment)
        assert process.returncode == expect, (
            f"{arguments}: exit {process.returncode}\n{process.stdout}\n{process.stderr}"
        )
        outputs[name] = process.stdout

    record("version", "--version")
    record("init", "-C", str(base / "empty"), "init")
    record("doctor", "doctor")
    record("plan-of-a-new-project", "plan")
    record("status-of-a-new-project", "status")
    record("build", "build", "ranker", environment=remotes)
    record("build-that-fails", "build", expect=1)
    record("build-with-nothing-to-do", "build", "ranker")
    record("build-with-an-unknown-model", "build", "rankr", expect=2)
    record("report", "report")
    record("build-frozen", "build", "broken", "--frozen", expect=3)
    record("plan", "plan", "ranker", environment=remotes)
    record("why", "why", "ranker")
    record("graph", "graph", "ranker")
    record("status", "status")
    _record_package_commands(record, project)
    _record_cache_commands(record, base, remotes)
    edit(project / "nets.py", "nn.Linear(16, 4)", "nn.Linear(16, 5)")
    record("why-after-a-change", "why", "ranker")
    record("diff", "diff", "dist/ranker", "ranker", expect=1)
    record("lock-out-of-date", "lock", "ranker", "--check", expect=1)
    shutil.rmtree(base)  # the tests read only the outputs
    return outputs


def _record_package_commands(record: Callable[..., None], project: Path) -> None:
    record("inspect", "inspect", "ranker")
    record("inspect-of-the-project", "inspect")
    record("inspect-precision", "inspect", "ranker", "--precision")
    record("inspect-with-memory", "inspect", "dist/ranker", "--memory", "--onnx", str(project / "onnx"))
    record("run", "run", "ranker", "--device", "cpu", "--input", "x=random:2x8")
    record("bench", "bench", "ranker", "--device", "cpu", "--duration", "0.01", "--warmup", "0", "--eager")
    record("verify", "verify", "ranker", "--points", "1")
    record("verify-of-verified", "verify", "ranker", "--points", "1")
    record("verify-of-a-failure", "verify", "--points", "1", expect=1)
    record("inspect-of-verified", "inspect", "ranker")
    record("build-and-verify", "build", "ranker", "--verify")
    record("diff-of-the-same", "diff", "dist/ranker", "ranker")
    record("lock", "lock", "ranker")
    record("lock-up-to-date", "lock", "ranker", "--check")


def _record_cache_commands(record: Callable[..., None], base: Path, remotes: dict[str, str]) -> None:
    record("cache-stats", "cache", "stats")
    record("cache-verify", "cache", "verify")
    record("cache-verify-and-rebuild", "cache", "verify", "--rebuild", "100%")
    record("cache-gc", "cache", "gc", "--dry-run")
    record("cache-gc-of-a-directory", "cache", "gc", "--dir", str(base / "remote"))
    record("cache-keygen", "cache", "keygen", "--out", str(base / "key"))
    record("cache-push", "cache", "push", "ranker", environment=remotes)
    record("cache-push-of-a-failure", "cache", "push", environment=remotes, expect=1)
    record(
        "cache-pull", "cache", "pull", "ranker", environment={**remotes, "TRTBUILD_CACHE_DIR": str(base / "another")}
    )
    record("cache-pull-of-a-failure", "cache", "pull", environment=remotes, expect=1)
    record("cache-export", "cache", "export", str(base / "bundle"), "ranker")
    record("cache-import", "cache", "import", str(base / "bundle"))
