"""A report in Chromium: views at three sizes, light and dark; hostile names; large and unfinished builds; scripts off."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.report_page.browser import Browser
from tests.cli.report_page.pages import HOSTILE, hostile_report, large_report
from tests.driver.reports.logs import a_log
from tests.programs import program
from trtbuild.cli.report_page.page import SCRIPTS, render
from trtbuild.driver.event_log import events
from trtbuild.driver.reports.documents import Report
from trtbuild.driver.reports.making import make_report
from trtbuild.errors import EnvironmentFault

VIEWS = ("overview", "timeline", "steps", "models", "layers", "checks", "changes")
SIZES = ((1440, 900), (820, 1180), (390, 844))

#: Press up to 60 controls of the view, each once. Controls that a press creates are pressed, too.
PRESS_ALL = """(async () => {
  const pressed = new Set();
  for (let round = 0; round < 60; round++) {
    const next = [...document.querySelectorAll("main button, main select, main input, main .bar[tabindex]")]
      .find((element) => !pressed.has(element) && !element.disabled);
    if (!next) break;
    pressed.add(next);
    if (next.tagName === "SELECT") {
      next.selectedIndex = next.options.length - 1;
      next.dispatchEvent(new Event("change"));
    } else if (next.tagName === "INPUT") {
      next.value = "m";
      next.dispatchEvent(new Event("input"));
    } else {
      next.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    }
  }
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
  return pressed.size;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser(program("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "report.html"


def write(page: Path, report: Report) -> None:
    page.write_text(render(report), encoding="utf-8")


def show(browser: Browser, view: str) -> None:
    """Show a view, and wait until it is drawn."""
    browser.run(f"location.hash = {view!r}; new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")


def text(browser: Browser) -> str:
    return str(browser.run("document.querySelector('main').innerText"))


def check(browser: Browser, page: Path) -> None:
    """Fail if the page requested another file or reported a problem, or if a hostile name ran as a script."""
    assert browser.requests == [page.as_uri()]
    assert browser.problems == []
    assert browser.run("window.hacked === undefined")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=["laptop", "tablet", "phone"])
def test_every_view_works_with_hostile_names(browser: Browser, page: Path, size: tuple[int, int], dark: bool) -> None:
    write(page, hostile_report(page.parent))
    browser.open(page, width=size[0], height=size[1], dark=dark)
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    red_green_blue = map(int, re.findall(r"\d+", background))
    assert (sum(red_green_blue) < 128) is dark
    for view in VIEWS:
        show(browser, view)
        assert len(text(browser)) > 20, view
        least_controls = 0 if view in ("checks", "changes") else 1
        assert browser.run(PRESS_ALL) >= least_controls, view
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the window"
    check(browser, page)


def test_the_views_show_the_contents_of_the_build(browser: Browser, page: Path) -> None:
    write(page, hostile_report(page.parent))
    browser.open(page, width=1440, height=900, dark=False)
    assert "Build failed" in browser.run("document.querySelector('header').innerText")
    expected = {
        "overview": ["no kernel", "choose another type", "ampere", "3.0 s", "u@h"],
        "timeline": ["Critical path: 5.0 s of 5.5 s", "worker 2", "memory"],
        "steps": ["changed: onnx", "256.0 MiB", "the partition step converted it"],
        "models": ["in PyTorch because", "float16", "a.b", "TensorRT"],
        "layers": ["1 layer", "float16"],
        "checks": ["5.0e-1", "1.50 ms", "wrong", "nan"],
        "changes": ["Steps that differ", "skipped"],
    }
    for view, texts in expected.items():
        show(browser, view)
        shown = text(browser)
        for expected_text in texts:
            assert expected_text in shown, (view, expected_text)
        if view != "timeline":
            assert HOSTILE[:-1] in shown.replace("\n", ""), f"{view} does not show hostile names as text"
    check(browser, page)


def test_a_partition_opens_and_shows_its_error_at_each_point(browser: Browser, page: Path) -> None:
    write(page, hostile_report(page.parent))
    browser.open(page, width=1440, height=900, dark=False)
    show(browser, "checks")
    row = "[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes('5.0e-1'))"
    browser.run(f"{row}.querySelector('button').click()")
    rows = browser.run("[...document.querySelectorAll('table.points tbody tr')].map((row) => row.innerText)")
    assert len(rows) == 2
    assert "2.5e-1" in rows[0] and "batch 1" in rows[0]
    check(browser, page)


def test_a_step_has_an_address_and_shows_its_changed_parts(browser: Browser, page: Path) -> None:
    write(page, make_report(page.parent, a_log(), []))
    browser.open(page, width=1440, height=900, dark=False)
    show(browser, "steps/m%2Fengine%2Fp0%40ada")
    detail = browser.run("document.querySelector('tr.detail').innerText")
    assert "aaaa" in detail
    assert "bbbb" in detail
    assert "m/partition" in detail, "the step that it waited for is not shown"
    show(browser, "steps/%E0%A4%A")  # a damaged address
    assert "m/trace" in text(browser)
    check(browser, page)


def test_the_theme_can_be_changed(browser: Browser, page: Path) -> None:
    write(page, make_report(page.parent, a_log(), []))
    browser.open(page, width=1440, height=900, dark=False)
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != before
    browser.run("document.getElementById('theme').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == before


def test_a_large_build_shows_a_page_of_rows_at_a_time(browser: Browser, page: Path) -> None:
    write(page, large_report(page.parent, engines=1000, layers=10_000))
    browser.open(page, width=1440, height=900, dark=False)
    for view in VIEWS:
        show(browser, view)
        assert browser.run("document.querySelectorAll('main tbody tr').length") <= 120, view
    show(browser, "layers")
    assert "1–50 of 10,000" in text(browser)
    browser.run(
        "const field = document.querySelector('input'); field.value = 'LAYERS.9999';"
        "field.dispatchEvent(new Event('input'))"
    )
    assert "n9999" in text(browser)
    assert browser.run("document.querySelectorAll('main tbody tr').length") == 1
    show(browser, "models")
    assert browser.run("document.querySelectorAll('.part').length") == 20
    check(browser, page)


def test_without_scripts_the_page_shows_the_verdict_and_the_tables(browser: Browser, page: Path) -> None:
    write(page, hostile_report(page.parent))
    browser.open(page, width=1440, height=900, dark=False, scripts=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)  # `Runtime.evaluate` runs a script
    shown = browser.call("Runtime.evaluate", expression="document.body.innerText")["result"]["value"]
    for expected in ("Build failed", "no kernel", "Models and targets", "ampere", "changed: onnx", "Changes since"):
        assert expected in shown, expected
    assert HOSTILE[:-1] in shown.replace("\n", "")
    check(browser, page)


@pytest.mark.parametrize(
    ("log", "headline"),
    [
        ([], "Build not finished"),
        (a_log()[:1], "Build not finished"),
        (a_log()[:9], "Build not finished"),
        (
            [*a_log()[:9], events.BuildFinished(at_s=9.0, status="interrupted", totals={}, errors=[], remotes=[])],
            "Build interrupted",
        ),
        (
            [a_log()[0], events.BuildFinished(at_s=9.0, status="error", totals={}, errors=[], remotes=[])],
            "Build ended with an error",
        ),
    ],
    ids=["no events", "only its start", "killed", "interrupted", "error"],
)
def test_the_report_of_an_unfinished_build_works(
    browser: Browser, page: Path, log: list[events.Event], headline: str
) -> None:
    write(page, make_report(page.parent, log, []))
    browser.open(page, width=1440, height=900, dark=False)
    assert headline in browser.run("document.querySelector('header').innerText")
    for view in VIEWS:
        show(browser, view)
        assert text(browser).strip(), view
    check(browser, page)


def test_the_checks_notice_a_script_and_a_request(browser: Browser, page: Path) -> None:
    """`check` fails for a page that runs the script in a name and requests an image."""
    page.write_text(f"<meta charset=utf-8><main>{HOSTILE}</main>", encoding="utf-8")
    browser.open(page, width=1440, height=900, dark=False)
    with pytest.raises(AssertionError):
        check(browser, page)
    assert browser.run("window.hacked === 1")
    assert len(browser.requests) > 1
    browser.problems.clear()  # other tests use this browser, too


def test_without_jinja2_the_error_names_the_extra(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report(page.parent, a_log(), [])
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(EnvironmentFault, match="a report needs jinja2") as caught:
        render(report)
    assert caught.value.hint == "pip install 'trtbuild[report]'"


def test_no_script_writes_markup_or_names_another_site() -> None:
    folder = Path(render.__code__.co_filename).parent
    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)
    for name in SCRIPTS:
        source = (folder / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:(?!//www\.w3\.org)", source
        )
