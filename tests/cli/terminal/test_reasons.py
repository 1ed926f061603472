"""The short texts about why a step runs."""

from __future__ import annotations

import pytest

from trtbuild.cli.terminal.reasons import short_reason, shorten, shorten_to_width
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import ABSENT, Change

DIGESTS = ("0" * 64, "f" * 64)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ([Change("file:models/vit.py", *DIGESTS)], "models/vit.py changed"),
        ([Change("file:models/new.py", ABSENT, DIGESTS[1])], "models/new.py is new"),
        ([Change("file:models/old.py", DIGESTS[0], "absent")], "models/old.py is gone"),
        ([Change("link:models/vit.py", "absent", "real.py")], "models/vit.py is a symbolic link now"),
        ([Change("link:models/vit.py", "real.py", "absent")], "models/vit.py is not a symbolic link now"),
        ([Change("environment:HOME", *DIGESTS)], "$HOME changed"),
        ([Change("distribution:torch", "2.9.0", "2.13.0")], "torch 2.9.0 → 2.13.0"),
        ([Change("settings.optimization_level", "3", "5")], "settings.optimization_level 3 → 5"),
        ([Change("onnx", *DIGESTS), Change("weights.w2", *DIGESTS), Change("x", "1", "2")], "onnx changed (+2)"),
    ],
)
def test_the_text_has_the_first_change_and_the_number_of_the_others(changed: list[Change], text: str) -> None:
    assert short_reason(Reason("changed", "changed: …", tuple(changed))) == text


def test_reasons_without_changed_parts_have_short_texts() -> None:
    assert short_reason(Reason("new", "it was not built in this project before")) == "new"
    assert (
        short_reason(Reason("evicted", "it was built before, but the cache no longer has it"))
        == "no longer in the cache"
    )
    assert short_reason(Reason("forced", "--force")) == "forced"
    assert short_reason(Reason("corrupt", "its output `plan` is damaged")) == "its output `plan` is damaged"


@pytest.mark.parametrize(
    ("width", "text"),
    [(24, "layers.1 changed (+12)"), (20, "layers.1 changed"), (12, "layers.1"), (6, "layer…"), (1, "…"), (0, "")],
)
def test_a_long_reason_is_shortened(width: int, text: str) -> None:
    assert shorten_to_width("layers.1 changed (+12)", width) == text


def test_long_values_keep_their_ends_and_digests_their_first_digits() -> None:
    assert shorten("3") == "3"
    assert shorten("0123456789abcdef" * 4) == "0123456789ab"
    assert shorten(f"origins.{'ab' * 32}") == "origins.abababababab"
    long = shorten("[" + "1, " * 100 + "2]")
    assert len(long) <= 70
    assert long.startswith("[1, ")
    assert long.endswith("1, 2]")
