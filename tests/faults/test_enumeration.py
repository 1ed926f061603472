"""`tests.faults.enumeration`: the choice of the calls that get a fault, and of the errors."""

from __future__ import annotations

import pytest

from tests.faults.enumeration import ERRORS, possible_faults, spread
from tests.faults.syscalls import Call

CALLS = [Call("write", number, "") for number in range(4)]


@pytest.mark.parametrize(("at_most", "expected"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, [*range(10)])])
def test_the_faults_are_spread_over_the_calls(at_most: int, expected: list[int]) -> None:
    assert spread(range(10), at_most) == expected


def test_each_call_gets_every_error_only_if_at_most_allows_so_many_faults() -> None:
    every_error = [(call, error) for call in CALLS for error in ERRORS]
    assert list(possible_faults("error", CALLS, 20)) == every_error
    assert list(possible_faults("error", CALLS, 19)) == list(zip(CALLS, ERRORS[:4], strict=True))
    assert [call for call, _ in possible_faults("kill", CALLS, 20)] == CALLS
