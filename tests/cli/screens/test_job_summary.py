"""The job summary of GitHub Actions: its contents, its escaped names, and summaries that cannot be written."""

from __future__ import annotations

import html
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.entries import a_build, a_step, an_error, remote_statistics
from trtbuild.cli import main
from trtbuild.cli.screens import job_summary
from trtbuild.cli.screens.job_summary import job_summary as summary
from trtbuild.core.planning.graph import Reason
from trtbuild.driver.answers.documents import Build, StepEntry

REASON = Reason("new", "there was no such step before")


def step(model: str, key: str, verdict: str = "hit", source: str | None = "local", saved_s: float = 0.0) -> StepEntry:
    return a_step(model, f"engine/{key}", verdict, REASON, "ada", key=key, source=source, saved_s=saved_s)


def document(*steps: StepEntry, **more: Any) -> Build:
    return a_build(*steps, duration_s=1.9, **more)


def table(text: str, first: str) -> list[list[str]]:
    """Return the rows, as a reader sees them, of the table whose first column has the title `first`."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([html.unescape(re.sub(r"</?code>", "", cell)).strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_summary_has_a_row_for_each_model_and_a_row_for_all() -> None:
    text = summary(
        document(
            step("vit", "a", saved_s=60.0),
            step("vit", "b", source="team", saved_s=3.0),
            step("vit", "c", "run", "built"),
            step("bert", "d", "failed", None),
            step("bert", "e", "skipped", None),
        )
    )
    assert text.startswith("\n### trtbuild build done: 2 hit, 1 run, 1 failed, 1 skipped in 1.9 s, 63.0 s saved\n")
    assert table(text, "model") == [
        ["vit", "2", "1", "0", "0", "local 1, team 1", "63.0 s"],
        ["bert", "0", "0", "1", "1", "", "0.0 s"],
        ["**all**", "2", "1", "1", "1", "local 1, team 1", "63.0 s"],
    ]


def test_the_row_for_all_is_left_out_for_one_model() -> None:
    assert len(table(summary(document(step("vit", "a"))), "model")) == 1


def test_saved_time_counts_once_for_each_key_and_not_for_keys_that_ran() -> None:
    steps = [step("a", "k", saved_s=10.0), step("b", "k", saved_s=10.0), step("c", "r", "run", "built")]
    steps.append(step("c", "r", saved_s=7.0))  # another step with this key has run
    text = summary(document(*steps))
    assert ", 10.0 s saved" in text
    assert [row[-1] for row in table(text, "model")] == ["10.0 s", "10.0 s", "0.0 s", "10.0 s"]


def test_remotes_failures_and_warnings_are_listed() -> None:
    report = remote_statistics("team", hits=3, bytes_down=5 << 20, records_sent=1, bytes_up=2048)
    down = remote_statistics("old", given_up="https://old.example: connection refused")
    incomplete = remote_statistics("x", untrusted=2, records_not_sent=1)
    failed = step("vit", "a", "failed", None)
    error = an_error("no such layer", file="net.py", line=3, hint="add it", step=failed.id)
    text = summary(
        document(
            failed,
            ok=False,
            remotes=[report, down, incomplete],
            errors=[error, an_error("disk full")],
            warnings=["team: slow", "team: slow"],
        )
    )
    assert "build failed: 1 failed" in text
    assert table(text, "remote") == [
        ["team", "3", "5.0 MiB", "1", "2.0 KiB", ""],
        ["old", "0", "0 B", "0", "0 B", "https://old.example: connection refused"],
        ["x", "0", "0 B", "0", "0 B", "2 untrusted, 1 not sent"],
    ]
    assert table(text, "failed step") == [
        [failed.id, "there was no such step before", "net.py:3: no such layer<br>→ add it"],
        ["", "", "disk full"],
    ]
    assert html.unescape(text).count("- warning: team: slow") == 1


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "a\n| b |",
        "<script>alert(1)</script>",
        "![x](https://evil.example/x.png)",
        "[x](javascript:1)",
        "`code`",
        "</code><b>",
        "@everyone",
        "https://evil.example",
        "www.evil.example",
        "**bold** _it_ ~no~ $x$",
        "&lt;",
        "\\",
        "\x1b[31mred\x1b[0m\x00",
    ],
)
def test_names_and_messages_are_escaped(name: str) -> None:
    text = summary(
        document(
            step(name, "a", source=name),
            warnings=[name],
            errors=[an_error(name, step=name)],
            remotes=[remote_statistics(name, given_up=name)],
        )
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    assert widths == [8, 8, 8, 7, 7, 7, 4, 4, 4], "a name adds a row or a column to one of the three tables"
    without_markup = re.sub(r"</?code>|<br>|&#[0-9]+;", "", text).replace("### ", "")
    assert not re.search(r"[\\`_{}\[\]<>()+!&~@$\x00-\x09\x0b-\x1f]|\*|://|www\.", without_markup)
    readable = re.sub(r"\x1b\[[0-9;]*m|\x00", "", name).replace("\n", " ")
    assert table(text, "model")[0][0] == readable


def test_the_summary_is_appended_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("earlier text")
    environ = {"GITHUB_STEP_SUMMARY": str(path)}
    assert job_summary.write(environ, document(step("vit", "a")))
    assert path.read_text().startswith("earlier text\n### trtbuild build done")


def test_summaries_that_are_appended_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.touch()
    environ = {"GITHUB_STEP_SUMMARY": str(path)}
    build = document(*(step(f"model{n}", "a") for n in range(50)))
    threads = [threading.Thread(target=job_summary.write, args=(environ, build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == summary(build) * 8


def test_the_summary_stays_below_the_limit_of_github(tmp_path: Path) -> None:
    long = "|" * 5000
    steps = [step(f"{n}{long}", str(n), "failed", None) for n in range(1000)]
    errors = [an_error(long, step=entry.id) for entry in steps]
    build = document(*steps, errors=errors, warnings=[f"{n}{long}" for n in range(1000)])
    text = summary(build)
    assert "… and 800 more" in text
    assert "… and 950 more errors" in text
    assert "… and 970 more" in text
    assert len(text.encode()) < job_summary.LARGEST_BYTES
    path = tmp_path / "summary.md"
    environ = {"GITHUB_STEP_SUMMARY": str(path)}
    assert job_summary.write(environ, build)
    assert path.read_text() == text
    path.write_bytes(b"x" * (job_summary.LARGEST_BYTES - 1000))
    assert job_summary.write(environ, build)  # only the first line fits
    assert path.read_text().endswith("x\n### trtbuild build done: 1,000 failed in 1.9 s\n")
    path.write_bytes(b"x" * (job_summary.LARGEST_BYTES - 10))
    assert not job_summary.write(environ, build)
    assert path.stat().st_size == job_summary.LARGEST_BYTES - 10


@pytest.mark.parametrize("kind", ["nothing", "missing", "directory", "pipe", "device"])
def test_an_unwritable_summary_is_skipped(tmp_path: Path, kind: str) -> None:
    paths = {"nothing": "", "missing": str(tmp_path / "a" / "b"), "directory": str(tmp_path), "device": "/dev/full"}
    if kind == "pipe":
        paths["pipe"] = str(tmp_path / "pipe")
        os.mkfifo(paths["pipe"])
    assert not job_summary.write({"GITHUB_STEP_SUMMARY": paths[kind]}, document())


def test_a_build_that_ends_before_any_step_has_a_summary_and_a_plan_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["trtbuild"])
    (tmp_path / "trtbuild.yaml").write_text("version: 2\n")
    assert main.run(["-C", str(tmp_path), "build"]) == 2
    assert path.read_text().startswith("\n### trtbuild build failed: nothing ran\n")
    assert table(path.read_text(), "failed step")[0][2].startswith("trtbuild.yaml:1:")
    before = path.read_text()
    assert main.run(["-C", str(tmp_path), "plan"]) == 2
    assert path.read_text() == before
