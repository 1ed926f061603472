"""The last result of `bench` for each model is kept in the state directory of a project, for reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtbuild.driver.running.documents import Bench
from trtbuild.driver.running.kept import FOLDER, keep_bench, kept_benches
from trtbuild.driver.workers.stopwatch import Budget

BENCH = Bench(
    package="dist/m",
    model="../m",
    device="cpu",
    device_name=None,
    reference=True,
    computed_by="PyTorch",
    target=None,
    budget=Budget(0.0, 0.1),
    duration_s=1.0,
    points=[],
    runs=[],
    versions={},
    warnings=[],
)


def test_the_last_result_of_each_model_is_kept(tmp_path: Path) -> None:
    keep_bench(tmp_path, BENCH)
    keep_bench(tmp_path, replace(BENCH, duration_s=2.0))
    keep_bench(tmp_path, replace(BENCH, model="n"))
    assert [(found["model"], found["duration_s"]) for found in kept_benches(tmp_path, ["n", "../m", "other"])] == [
        ("../m", 2.0),
        ("n", 1.0),
    ]
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


def test_a_damaged_file_is_left_out_and_no_folder_is_created_outside_a_project(tmp_path: Path) -> None:
    keep_bench(tmp_path / "missing", BENCH)
    assert list(tmp_path.iterdir()) == []
    keep_bench(tmp_path, BENCH)
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_text('{"schema": "another"}')
    assert kept_benches(tmp_path, ["../m"]) == []
