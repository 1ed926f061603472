"""A report shows who signed the engines. One engine is from a shared store, and the build has signed the other one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builds.signing.test_signed_builds import CI
from tests.builds.test_events_and_reports import report_data
from tests.cli.report_page.browser import Browser
from tests.conftest import CommandLine
from tests.programs import program
from tests.projects import copy_project, edit
from trtbuild.store.trust.signing import Signer

ALICE = Signer("alice", b"a" * 32)

#: JavaScript: the cells of the table of models and targets, row by row. The first row has the titles.
TABLE = """(() => {
  const table = [...document.querySelectorAll("table")].find((found) => found.tHead.textContent.includes("signed by"));
  return [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
})()"""


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A checkout with one more target than CI has built. Alice's build found CI's engine in the shared store."""
    base = tmp_path_factory.mktemp("signers")
    (base / "remote").mkdir()
    shared = {
        "HOME": str(base / "home"),
        "XDG_STATE_HOME": str(base / "state"),
        "XDG_CONFIG_HOME": str(base / "config"),
        "TRTBUILD_TRUSTED_KEYS": f"{CI.trusted} {ALICE.trusted}",
        "TRTBUILD_REMOTES": f"team=rw:file://{base / 'remote'}",
    }
    ci = CommandLine(base / "ci", base / "cache of ci", {**shared, "TRTBUILD_SIGNING_KEY": CI.text()})
    copy_project("mlp", ci.project)
    ci("build")
    command = CommandLine(base / "alice", base / "cache of alice", {**shared, "TRTBUILD_SIGNING_KEY": ALICE.text()})
    copy_project("mlp", command.project)
    manifest = command.project / "trtbuild.yaml"
    edit(manifest, "ada: {sm: 89}", "ada: {sm: 89}\n  blackwell: {sm: 120}")
    edit(manifest, "targets: [ada]", "targets: [ada, blackwell]")
    command("build", "--report", "report.html")
    return command


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser(program("chromium"))
    yield opened
    opened.close()


def signer_rows(report: Any) -> list[tuple[str, list[str], list[str]]]:
    return [(row["target"], row["sources"], row["signers"]) for row in report["targets"]]


def test_each_row_has_the_signer_of_its_engines(alice: CommandLine) -> None:
    report = report_data(alice.project / "report.html")
    assert signer_rows(report) == [
        ("ada", ["team"], ["ci (domain ci)"]),
        ("blackwell", ["built"], ["alice (domain alice)"]),
    ]
    signers = {(step["stage"], step["target"]): step["signer"] for step in report["steps"]}
    assert {place: signer for place, signer in signers.items() if signer is not None} == {
        ("engine", "ada"): "ci (domain ci)",
        ("engine", "blackwell"): "alice (domain alice)",
    }


def test_a_machine_without_trusted_keys_shows_no_signer(alice: CommandLine) -> None:
    no_keys = {"TRTBUILD_TRUSTED_KEYS": "", "TRTBUILD_SIGNING_KEY": ""}
    alice("report", "-o", "without-keys.html", environment=no_keys)
    assert signer_rows(report_data(alice.project / "without-keys.html")) == [
        ("ada", ["team"], []),
        ("blackwell", ["built"], []),
    ]


def test_a_signer_that_is_not_trusted_is_not_shown(alice: CommandLine) -> None:
    alice("report", "-o", "only-alice.html", environment={"TRTBUILD_TRUSTED_KEYS": str(ALICE.trusted)})
    signers = [signers for _, _, signers in signer_rows(report_data(alice.project / "only-alice.html"))]
    assert signers == [[], ["alice (domain alice)"]]


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_has_a_column_for_the_signers(alice: CommandLine, browser: Browser, scripts: bool) -> None:
    page: Path = alice.project / "report.html"
    browser.open(page, width=1440, height=900, dark=False, scripts=scripts)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)  # TABLE is a script
    titles, *rows = browser.run(TABLE)
    assert ("saved" in titles) is scripts, "only the table that scripts write has this column"
    assert titles[-1] == "signed by"
    assert [row[-1] for row in rows] == ["ci (domain ci)", "alice (domain alice)"]
