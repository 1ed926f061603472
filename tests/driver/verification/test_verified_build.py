"""The errors of a build whose verification fails."""

from __future__ import annotations

from tests.core.verified_values import a_cut_entry, a_model_entry, a_partition_entry, a_whole_entry
from trtbuild.core.model.verified import CutEntry
from trtbuild.driver.verification.verified_build import _failures

WRONG = {"status": "wrong", "error": 0.5}


def errors(cut: CutEntry) -> list[str]:
    """Return the part of each error before ``is wrong``. `cut` is the comparison for the model's only cut.

    A cut is one way to divide a model into partitions."""
    return [text.partition(" is wrong: ")[0] for text, _ in _failures(a_model_entry(cut))]


def test_wrong_partitions_explain_the_error_of_the_whole_model_but_not_of_the_lowered_program() -> None:
    lowered = "model 'net', lowered and run by PyTorch without engines,"
    parts = [a_partition_entry("p0", **WRONG), a_partition_entry("p1"), a_partition_entry("p2", **WRONG)]
    of_parts = ["model 'net', partition 'p0'", "model 'net', partition 'p2'"]
    wrong = a_whole_entry(**WRONG)
    assert errors(a_cut_entry(status="wrong", partitions=parts, whole=wrong)) == of_parts
    assert errors(a_cut_entry(status="wrong", partitions=parts, whole=wrong, lowered=wrong)) == [*of_parts, lowered]
    assert errors(a_cut_entry(status="wrong", whole=wrong, lowered=wrong)) == ["model 'net'", lowered]
    assert errors(a_cut_entry()) == []
