"""The table of operators for precision: each name exists, is listed once and has a reason."""

from __future__ import annotations

import torch

from trtbuild.stages.lower.half_precision import operators
from trtbuild.stages.lower.half_precision.operators import OPERATORS, OVERLOAD_ROWS, Role, row_of


def _names() -> list[str]:
    rows = " ".join(names for _, _, names in operators._FLOAT32_OPERATORS)
    lists = (operators._CONTRACTIONS, operators._ELEMENTWISE, operators._ELEMENTWISE_BOUNDED, operators._MOVES)
    return " ".join((rows, *lists, operators._SCALINGS, operators._COMPARISONS, operators._SHAPES)).split()


def test_every_operator_is_in_one_row() -> None:
    names = _names()
    assert sorted(names) == sorted(set(names)) == sorted(OPERATORS)


def test_every_operator_of_the_table_exists_in_aten() -> None:
    known = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "aten::" in name}
    assert set(OPERATORS) - known == set()
    assert {name.split(".")[0] for name in OVERLOAD_ROWS} <= known


def test_every_row_has_a_reason() -> None:
    assert all(row.reason for row in OPERATORS.values())


def test_sensitive_operators_stay_in_float32() -> None:
    names = """softmax log_softmax layer_norm batch_norm group_norm instance_norm rms_norm sum mean var std prod cumsum
        logsumexp norm pow exp log rsqrt reciprocal cdist mse_loss grid_sampler"""
    assert {OPERATORS[name].role for name in names.split()} == {Role.KEEP}


def test_unlisted_operators_stay_in_float32() -> None:
    assert row_of(torch.ops.aten.searchsorted.Tensor).role is Role.KEEP
    assert row_of(torch.ops.prims.convert_element_type.default).role is Role.KEEP
    assert row_of(len).role is Role.KEEP


def test_rounding_division_stays_in_float32_and_division_does_not() -> None:
    assert row_of(torch.ops.aten.div.Tensor).role is Role.ELEMENTWISE
    assert row_of(torch.ops.aten.div.Tensor_mode).role is Role.KEEP
