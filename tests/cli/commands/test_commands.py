"""Flags, exit codes and documents of the command line. No test here runs a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.projects import ADA_AND_AMPERE, copy_project, edit
from trtbuild.cli import main
from trtbuild.driver.project.workspace import Request


@pytest.fixture
def trtbuild(command_line: CommandLine) -> CommandLine:
    copy_project("two_models", command_line.project, *ADA_AND_AMPERE)
    return command_line


def test_a_plan_has_the_verdicts_run_and_unknown_and_runs_nothing(trtbuild: CommandLine) -> None:
    document = trtbuild("plan")
    assert document["schema"] == "trtbuild.plan/1"
    assert document["ok"]
    assert list(document["totals"]) == ["calibrate", "trace", "lower", "partition", "convert", "engine", "package"]
    assert document["totals"]["trace"] == {"hit": 0, "run": 2, "failed": 0, "skipped": 0, "unknown": 0}
    assert document["totals"]["package"]["unknown"] == 2
    for step in document["steps"]:
        assert step["verdict"] in ("run", "unknown")
        assert step["reason"]["code"] == "new"
        assert step["reason"]["changed"] == []
    assert not list(trtbuild.cache.glob("ac/*/*"))


def test_flags_are_accepted_before_and_after_a_command(trtbuild: CommandLine, tmp_path: Path) -> None:
    trtbuild.project = tmp_path
    before = trtbuild.run("-C", "project", "--target", "ada", "--json", "plan", "first")
    after = trtbuild.run("plan", "first", "-C", "project", "--target", "ada", "--json")
    assert before.returncode == after.returncode == 0, before.stderr
    steps = [{**step, "duration_s": 0} for step in json.loads(before.stdout)["steps"]]
    assert steps == [{**step, "duration_s": 0} for step in json.loads(after.stdout)["steps"]]
    assert {step["target"] for step in steps} == {None, "ada"}
    stats = trtbuild.run("cache", "-C", "project", "stats", "--json")
    assert json.loads(stats.stdout)["schema"] == "trtbuild.cache-stats/1"


class FakeWatcher:
    """A watcher that builds nothing. `command_lines` gets the command line that builds of a real watcher have."""

    command_lines: list[list[str]]

    def __init__(self, request: Request, arguments: list[str], run: object, files: list[str]) -> None:
        self._arguments = arguments

    def watch(self) -> None:
        self.command_lines.append(self._arguments)


@pytest.mark.parametrize(
    ("words", "words_of_builds"),
    [
        (["watch", "vit", "-j", "2"], ["build", "vit", "-j", "2"]),
        (["-C", "watch", "watch"], ["-C", "watch", "build"]),
        (["--file", "watch", "watch", "watch"], ["--file", "watch", "build", "watch"]),
        (["-j", "2", "--target", "watch", "watch"], ["-j", "2", "--target", "watch", "build"]),
    ],
    ids=" ".join,
)
def test_watch_passes_its_command_line_to_the_builds(
    words: list[str], words_of_builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.driver.watching.watcher.Watcher", FakeWatcher)
    monkeypatch.setattr(FakeWatcher, "command_lines", [], raising=False)
    main.cli.main(words, standalone_mode=False, obj={"arguments": words})
    assert FakeWatcher.command_lines == [words_of_builds]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "frist"], "did you mean 'first'"),
        (["build", "--target", "adda"], "did you mean 'ada'"),
        (["why", "first/trac"], "did you mean 'first/trace'"),
        (["plan", "-C", "nowhere"], "no directory"),
        (["plan", "-f", "missing.yaml"], "missing.yaml"),
        (["plan", "--no-such-flag"], "no-such-flag"),
        (["inspect", "first"], "trtbuild build first"),
        (["inspect", "first", "--precision", "--layers"], "--precision and --layers"),
        (["inspect", "first", "--precision", "--trtexec"], "--precision and --trtexec"),
        (["inspect", "first", "--precision", "--memory"], "--precision and --memory"),
        (["inspect", "--precision", "--onnx", "build/onnx"], "--precision and --onnx"),
        (["cache", "gc", "--max-size", "much"], "50GiB"),
        (["build", "-j", "0"], "-j"),
    ],
)
def test_usage_errors_exit_with_2_and_explain_the_mistake(
    trtbuild: CommandLine, arguments: list[str], message: str
) -> None:
    result = trtbuild.run(*arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_document_has_the_schema_of_the_command_if_a_flag_value_is_a_command_name(
    trtbuild: CommandLine, tmp_path: Path
) -> None:
    trtbuild.project.rename(tmp_path / "graph")  # also the name of a command
    trtbuild.project = tmp_path
    edit(tmp_path / "graph" / "trtbuild.yaml", "sm: 89", "smm: 89")
    result = trtbuild.run("-C", "graph", "plan", "--json")
    assert result.returncode == 2
    assert json.loads(result.stdout)["schema"] == "trtbuild.plan/1"
    result = trtbuild.run("--no-such-flag", "plan", "--json")
    assert json.loads(result.stdout)["schema"] == "trtbuild.plan/1"


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (("cache", "gc", "--no-such-flag"), "cache-gc"),
        (("cache", "keygen", "--no-such-flag"), "keygen"),
        (("cache", "push", "no-such-model"), "cache-push"),
        (("lock", "--no-such-flag"), "locked"),
    ],
)
def test_an_error_document_has_the_schema_of_the_commands_other_documents(
    trtbuild: CommandLine, arguments: tuple[str, ...], schema: str
) -> None:
    result = trtbuild.run(*arguments, "--json")
    assert result.returncode == 2
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["schema"] == f"trtbuild.{schema}/1"


def test_with_json_an_error_in_the_manifest_is_a_document_without_steps(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "sm: 89", "smm: 89")
    document = trtbuild("build", expect=2)
    assert document["schema"] == "trtbuild.build/1"
    assert document["ok"] is False
    assert document["steps"] == []
    assert {(error["file"], error["line"]) for error in document["errors"]} == {("trtbuild.yaml", 3)}
    assert any("smm" in error["text"] for error in document["errors"])


def test_a_target_that_its_toolchain_does_not_support_is_an_error_before_any_step_runs(
    trtbuild: CommandLine,
) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "sm: 89", "sm: 90")
    document = trtbuild("plan", expect=2)
    assert document["steps"]
    assert "90" in document["errors"][0]["text"]
    built = trtbuild("build", expect=2)
    assert built["steps"] == []
    assert not list(trtbuild.cache.glob("ac/*/*"))


def test_the_error_about_a_missing_toolchain_names_the_pip_command(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "sm: 89", "sm: 89, toolchain: tensorrt")
    result = trtbuild.run("build")
    assert result.returncode == 2
    assert "pip install" in result.stderr


def test_frozen_with_something_to_do_exits_with_3_and_lists_it(trtbuild: CommandLine) -> None:
    result = trtbuild.run("build", "--frozen")
    assert result.returncode == 3
    assert "first/trace" in result.stderr
    assert "second/trace" in result.stderr


def test_status_and_graph_need_no_build(trtbuild: CommandLine) -> None:
    status = trtbuild("status")
    assert [entry["up_to_date"] for entry in status["models"]] == [False, False]
    graph = trtbuild("graph", "first")
    assert ["first/trace", "first/lower"] in graph["edges"]
    assert "digraph" in trtbuild.run("graph", "--format", "dot").stdout
    assert "flowchart" in trtbuild.run("graph", "--format", "mermaid").stdout


def test_the_schema_command_prints_a_json_schema(trtbuild: CommandLine) -> None:
    schema = json.loads(trtbuild.run("schema").stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_queries_import_neither_torch_nor_tensorrt(trtbuild: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'tensorrt', 'tensorrt_rtx', 'onnx', 'numpy'):\n"
        "            raise ImportError(f'{name} must not be imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    blocked = {"PYTHONPATH": str(tmp_path)}
    for command in (["plan"], ["why", "first"], ["status"], ["graph"], ["cache", "stats"], ["schema"]):
        result = trtbuild.run(*command, environment=blocked)
        assert result.returncode == 0, result.stderr
