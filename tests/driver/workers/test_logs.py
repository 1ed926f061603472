"""The output of workers is kept by step, bounded, and replaced by the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.driver.workers import logs


def test_a_log_lies_under_the_id_of_its_step(tmp_path: Path) -> None:
    kept = logs.keep(tmp_path, "vit/engine/encoder.layers.3@ada", "hello\n")
    assert kept == tmp_path / "vit/engine/encoder.layers.3@ada.log"
    assert kept.read_text() == "hello\n"


def test_the_next_run_replaces_it_and_removes_it_when_there_is_nothing_to_say(tmp_path: Path) -> None:
    logs.keep(tmp_path, "m/trace", "first")
    kept = logs.keep(tmp_path, "m/trace", "second")
    assert kept is not None and kept.read_text() == "second"
    assert logs.keep(tmp_path, "m/trace", " \n") is None
    assert list((tmp_path / "m").iterdir()) == []


def test_of_a_long_one_the_middle_is_left_out(tmp_path: Path) -> None:
    text = "first line\n" + "x" * (3 * (logs.HEAD + logs.TAIL)) + "\nlast line"
    source = tmp_path / "source"
    source.write_text(text)
    with open(source, "rb") as file:
        read = logs.read(file.fileno(), 0)
    for shortened in (logs.bounded(text).decode(), read):
        assert shortened.startswith("first line") and shortened.endswith("last line")
        assert f"{len(text) - logs.HEAD - logs.TAIL} bytes are left out" in shortened
        assert len(shortened) < logs.HEAD + logs.TAIL + 100
    assert logs.bounded(read).decode() == read, "once is enough"


def test_a_log_is_read_from_where_the_job_began(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before" + b"after\xff")
    with open(tmp_path / "log", "rb") as file:
        assert logs.read(file.fileno(), 6) == "after\N{REPLACEMENT CHARACTER}"
        assert logs.read(file.fileno(), 100) == ""


@pytest.mark.parametrize("step", ["../x", "m/engine/../../../x", "m/" + "long" * 100, "a:b/c\\d", "m//x", "m/\0"])
def test_no_id_leaves_the_folder(tmp_path: Path, step: str) -> None:
    folder = tmp_path / "logs"
    kept = logs.keep(folder, step, "text")
    assert kept is not None and kept.resolve().is_relative_to(folder.resolve())
    assert kept != logs.log_file(folder, step + "x")


def test_a_log_that_cannot_be_kept_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the place of the folder")
    assert logs.keep(tmp_path / "logs", "m/trace", "text") is None
