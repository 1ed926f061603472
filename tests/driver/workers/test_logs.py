"""The logs of steps: their paths, their replacement by the next run of a step, and long logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.driver.workers import logs


def test_the_path_of_a_log_follows_from_the_id_of_its_step(tmp_path: Path) -> None:
    path = logs.keep(tmp_path, "vit/engine/encoder.layers.3@ada", "hello\n")
    assert path == tmp_path / "vit/engine/encoder.layers.3@ada.log"
    assert path.read_text() == "hello\n"


def test_the_next_run_replaces_the_log_or_removes_it_if_nothing_was_printed(tmp_path: Path) -> None:
    logs.keep(tmp_path, "m/trace", "first")
    path = logs.keep(tmp_path, "m/trace", "second")
    assert path is not None and path.read_text() == "second"
    assert logs.keep(tmp_path, "m/trace", " \n") is None
    assert list((tmp_path / "m").iterdir()) == []


def test_the_middle_of_a_long_log_is_left_out(tmp_path: Path) -> None:
    text = "first line\n" + "x" * (3 * (logs.HEAD_BYTES + logs.TAIL_BYTES)) + "\nlast line"
    source = tmp_path / "source"
    source.write_text(text)
    with open(source, "rb") as file:
        read = logs.read(file.fileno(), 0)
    for shortened in (logs.shorten(text).decode(), read):
        assert shortened.startswith("first line") and shortened.endswith("last line")
        assert f"{len(text) - logs.HEAD_BYTES - logs.TAIL_BYTES} bytes are left out" in shortened
        assert len(shortened) < logs.HEAD_BYTES + logs.TAIL_BYTES + 100
    assert logs.shorten(read).decode() == read, "a shortened log is shortened again"


def test_a_log_is_read_from_the_offset_at_which_the_job_began(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before" + b"after\xff")
    with open(tmp_path / "log", "rb") as file:
        assert logs.read(file.fileno(), 6) == "after\N{REPLACEMENT CHARACTER}"
        assert logs.read(file.fileno(), 100) == ""


@pytest.mark.parametrize("step", ["../x", "m/engine/../../../x", "m/" + "long" * 100, "a:b/c\\d", "m//x", "m/\0"])
def test_no_step_id_leads_out_of_the_folder(tmp_path: Path, step: str) -> None:
    folder = tmp_path / "logs"
    path = logs.keep(folder, step, "text")
    assert path is not None and path.resolve().is_relative_to(folder.resolve())
    assert path != logs.log_file(folder, step + "x")


def test_a_log_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the place of the folder")
    assert logs.keep(tmp_path / "logs", "m/trace", "text") is None
