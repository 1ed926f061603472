"""Errors of `trtbuild.compile` name no fields of a manifest."""

from __future__ import annotations

import pytest

from trtbuild.driver.in_program.messages import reword


@pytest.mark.parametrize(
    ("text", "reworded"),
    [
        (
            "if later calls need its value, write `state: [count]` in the manifest, or do not write to it in forward",
            "if later calls need its value, pass it as an input and return its new value, or do not write to it in forward",
        ),
        (
            "register it as a buffer and name it in the manifest's `state`, or do not write to it in forward",
            "pass it as an input and return its new value, or do not write to it in forward",
        ),
        (
            "pass the value as an input and return it, or keep it in a buffer that the field `state` names",
            "pass the value as an input and return it",
        ),
    ],
)
def test_a_hint_about_state_does_not_name_a_field(text: str, reworded: str) -> None:
    assert reword(text) == reworded
