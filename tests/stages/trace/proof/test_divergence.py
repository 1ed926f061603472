"""The line that only one of two calls runs."""

from __future__ import annotations

from trtbuild.stages.trace.proof.divergence import diverging_line


def branch(size: int) -> int:
    if size == 1:
        return 2
    return 3


def failing(size: int) -> int:
    raise ValueError(size)


FIRST = branch.__code__.co_firstlineno


def is_here(name: str) -> bool:
    return name == __file__


def test_it_finds_the_line_that_only_the_first_call_runs() -> None:
    assert diverging_line(lambda: branch(1), lambda: branch(4), is_here) == ((__file__, FIRST + 2), True)
    assert diverging_line(lambda: branch(4), lambda: branch(1), is_here) == ((__file__, FIRST + 3), True)


def test_none_where_both_run_the_same_lines_or_one_fails_or_no_file_is_shown() -> None:
    assert diverging_line(lambda: branch(4), lambda: branch(5), is_here) is None
    assert diverging_line(lambda: branch(1), lambda: failing(4), is_here) is None
    assert diverging_line(lambda: branch(1), lambda: branch(4), lambda name: False) is None
