"""The messages about the results of a verification.

`a_cut_entry` returns the result for one cut: one way to divide a model into partitions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.verified_values import WORST, a_cut_entry, a_partition_entry, a_whole_entry
from trtbuild.core.model.comparisons import Operator, Place
from trtbuild.core.model.verification_messages import advice_lines, error_text, tf32_hint, worst_error


def test_the_worst_error_uses_the_largest_share_of_its_tolerance() -> None:
    exact, coarse = a_partition_entry(error=8e-6, tolerance=1e-5), a_partition_entry(error=2e-3, tolerance=5e-3)
    not_compared, whole = a_partition_entry(error=None, tolerance=1e-5), a_whole_entry(error=2e-3, tolerance=5e-3)
    entry = a_cut_entry(tolerance=5e-3, partitions=[coarse, exact, not_compared], whole=whole)
    assert worst_error(entry) == (8e-6, 1e-5)
    equal, close = a_partition_entry(error=0.0, tolerance=0.0), a_partition_entry(error=1e-9, tolerance=0.0)
    entry = a_cut_entry(tolerance=0.0, partitions=[equal, close], whole=a_whole_entry(error=None))
    assert worst_error(entry) == (1e-9, 0.0)
    assert worst_error(a_cut_entry(tolerance=1e-5, partitions=[], whole=a_whole_entry(error=None))) == (0.0, 1e-5)


@pytest.mark.parametrize(
    ("dims", "place"),
    [({"batch": 3}, " at profile rows, min (batch = 3)"), ({}, " at profile rows, min")],
)
def test_the_error_text_has_the_distance_and_the_place(dims: dict[str, int], place: str) -> None:
    entry = a_whole_entry(error=0.25, worst=replace(WORST, which="min", dims=dims))
    assert error_text(entry) == f"is wrong: 2.5e-01 away (1e-05 is allowed){place}"
    assert "is wrong: shape [1] instead" in error_text(a_whole_entry(error=None, text="shape [1] instead", worst=None))


def test_advice_names_the_first_wrong_operator_and_where_the_fault_begins() -> None:
    first = Operator("layers.2", "aten.add.Tensor", [f"n{k}" for k in range(6)])
    since = Operator("", "aten.mul.Tensor")
    assert advice_lines(a_partition_entry(place=None)) == advice_lines(a_whole_entry()) == []
    (line,) = advice_lines(a_partition_entry(place=Place(first, since=first, error=0.5, text="")))
    assert line == "first wrong: aten.add.Tensor in layers.2, 5.0e-01 away (ONNX nodes n0, n1, n2 and 3 more)"
    lines = advice_lines(a_partition_entry(place=Place(first, since, error=None, text="dtype")))
    assert "may begin at aten.mul.Tensor in the model itself: the values from there to the operator above" in lines[1]


def test_tf32_is_suggested_if_it_explains_the_error() -> None:
    entry = a_partition_entry(status="wrong", error=1.1e-3, tolerance=1e-3)
    known, unknown = tf32_hint(entry, tf32=True), tf32_hint(entry, tf32=None)
    assert known is not None and unknown is not None
    assert unknown.startswith("unless the engine was") and unknown.endswith(known)
    for words in ("TF32", "`builder: {tf32: false}`", "`--tolerance X`"):
        assert words in known
    assert tf32_hint(entry, tf32=False) is None
    assert tf32_hint(replace(entry, error=1e-2), True) is None
    assert tf32_hint(replace(entry, error=None), True) is None
    assert tf32_hint(replace(entry, status="right"), True) is None
    assert tf32_hint(replace(entry, precision="float16"), True) is None
    assert advice_lines(replace(entry, hint=known)) == [known] and advice_lines(entry) == []
