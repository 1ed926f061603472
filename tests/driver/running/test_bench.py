"""``trtbuild bench`` times runners (the package, the original module) at points (shapes). No test compares durations."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.driver.conftest import Small
from trtbuild.core.values.codec import encode
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.running.bench import bench
from trtbuild.driver.workers.stopwatch import MIN_CALLS, Budget
from trtbuild.errors import CallRefused, UsageError

SHORT = Budget(0.0, 0.0)


def test_every_profile_is_timed_at_min_opt_and_max_and_equal_shapes_once(small: Small) -> None:
    document = bench(Request(small.project), "ranker", device="cpu", budget=SHORT)
    assert [(point.label, point.dims) for point in document.points] == [
        ("rows min; single min, opt, max", {"batch": 1}),
        ("rows opt", {"batch": 4}),
        ("rows max", {"batch": 16}),
    ]
    assert [(run.runner, run.point) for run in document.runs] == [("trtbuild", number) for number in range(3)]
    assert all(run.count >= MIN_CALLS for run in document.runs)
    assert document.reference and "no engine is timed" in document.warnings[0]
    json.dumps(encode(document))


def test_the_command_writes_a_document_a_plot_and_its_progress(small: Small, tmp_path: Path) -> None:
    plot = tmp_path / "bench.svg"
    quick = ["--device", "cpu", "--duration", "0", "--warmup", "0", "--profile", "single"]
    document = small.command_line("bench", "ranker", *quick, "--plot", str(plot))
    assert (document["schema"], len(document["runs"]), document["plot"]) == ("trtbuild.bench/1", 1, str(plot))
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    progress = small.command_line.run("bench", "ranker", *quick).stderr.splitlines()
    assert [line.split()[0] for line in progress] == ["run", "done"] and all("time single" in line for line in progress)
    assert small.command_line.run("bench", "ranker", *quick, "--quiet").stderr == ""


def test_an_original_that_fails_at_a_shape_is_not_timed_at_later_shapes(
    small: Small, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for fault, message in (("raise ValueError('not four')", "not four"), ("os._exit(3)", "exited with status 3")):
        project = tmp_path_factory.mktemp("fails")
        (project / "trtbuild.yaml").write_text((small.project / "trtbuild.yaml").read_text())
        text = (small.project / "nets.py").read_text()
        text = "import os\n" + text.replace(
            "self, x, *, scale):\n", f"self, x, *, scale):\n        if len(x) == 4: {fault}\n"
        )
        assert fault in text
        (project / "nets.py").write_text(text)
        document = bench(Request(project), str(small.package), originals=["eager"], device="cpu", budget=SHORT)
        points = {
            runner: [run.point for run in document.runs if run.runner == runner] for runner in ("trtbuild", "eager")
        }
        assert points == {"trtbuild": [0, 1, 2], "eager": [0]}
        assert [warning for warning in document.warnings if message in warning and warning.startswith("eager: ")]


def test_shapes_and_the_profile_may_be_given(small: Small) -> None:
    document = bench(
        Request(small.project), "dist/ranker", shapes=["x=7x8"], profile="single", device="cpu", budget=SHORT
    )
    assert [point.shapes["x"] for point in document.points] == [(1, 8), (7, 8)]
    assert document.points[1].label == "given"


def test_the_original_is_timed_at_the_same_shapes(small: Small) -> None:
    document = bench(Request(small.project), "ranker", originals=["eager"], device="cpu", budget=SHORT)
    eager = [run for run in document.runs if run.runner == "eager"]
    assert [run.point for run in eager] == [0, 1, 2]
    assert [run.runner for run in document.runs] == ["trtbuild"] * 3 + ["eager"] * 3
    assert all(run.count == MIN_CALLS and run.first_s > 0 for run in document.runs)
    assert document.versions["torch"]


def test_an_original_that_fails_is_a_warning_and_the_package_is_timed(
    small: Small, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = tmp_path_factory.mktemp("broken")
    (project / "trtbuild.yaml").write_text((small.project / "trtbuild.yaml").read_text())
    (project / "nets.py").write_text("import torch\n\n\ndef build():\n    raise ValueError('broken on purpose')\n")
    document = bench(Request(project), str(small.package), originals=["eager"], device="cpu", budget=SHORT)
    assert {run.runner for run in document.runs} == {"trtbuild"}
    assert any("broken on purpose" in text for text in document.warnings), document.warnings


def test_rejects_an_original_that_is_not_in_the_manifests(
    small: Small, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = tmp_path_factory.mktemp("elsewhere")
    text = (small.project / "trtbuild.yaml").read_text().replace("  ranker:", "  other:")
    (project / "trtbuild.yaml").write_text(text)
    with pytest.raises(UsageError, match="there is no model 'ranker' in its manifests"):
        bench(Request(project), str(small.package), originals=["eager"], device="cpu", budget=SHORT)


def test_rejects_a_shape_outside_of_every_profile(small: Small) -> None:
    with pytest.raises(CallRefused, match="is 17, and allowed is 1 to 16"):
        bench(Request(small.project), "ranker", shapes=["x=17x8"], device="cpu", budget=SHORT)


@pytest.mark.parametrize(
    ("shape", "words"), [("7x8", "names no input"), ("z=7x8", "no input 'z'"), ("x=7*8", "'7.8' is not a shape")]
)
def test_rejects_invalid_shapes(small: Small, shape: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bench(Request(small.project), "ranker", shapes=[shape], device="cpu", budget=SHORT)
