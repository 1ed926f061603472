"""`diverging_line` finds the first line that only one of two calls runs."""

from __future__ import annotations

from trtbuild.stages.trace.proof.divergence import diverging_line


def branch(size: int) -> int:
    if size == 1:
        return 2
    return 3


def failing(size: int) -> int:
    raise ValueError(size)


FIRST = branch.__code__.co_firstlineno


def is_this_file(name: str) -> bool:
    return name == __file__


def test_finds_the_line_that_only_the_first_call_runs() -> None:
    assert diverging_line(lambda: branch(1), lambda: branch(4), is_this_file) == ((__file__, FIRST + 2), True)
    assert diverging_line(lambda: branch(4), lambda: branch(1), is_this_file) == ((__file__, FIRST + 3), True)


def test_returns_none_if_the_lines_are_equal_or_a_call_fails_or_no_file_is_selected() -> None:
    assert diverging_line(lambda: branch(4), lambda: branch(5), is_this_file) is None
    assert diverging_line(lambda: branch(1), lambda: failing(4), is_this_file) is None
    assert diverging_line(lambda: branch(1), lambda: branch(4), lambda name: False) is None
