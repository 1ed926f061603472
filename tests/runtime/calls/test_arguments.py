"""The message about a wrong size of an axis names the sizes that are allowed."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.memory.test_memory import STREAM, HostMemory
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.package_index import PackageIndex, PackedDim, PackedProfile, PackedTensor
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import CallRefused, PackageDamaged
from trtbuild.runtime.calls.arguments import Arguments

N = ("sym", 0)


def arguments_of(size: Expression) -> Arguments:
    """Return the `Arguments` of a model whose only input has one axis of this size."""
    profile = PackedProfile("all", (ShapeRange((0,), (9,), (99,)),))
    inputs = (PackedTensor("x", "float32", (size,)),)
    index = PackageIndex("net", inputs, (), None, (PackedDim("n", 0, 99, 1),), (profile,), "float32", {}, True, {}, {})
    return Arguments(index, HostMemory(STREAM))


@pytest.mark.parametrize(
    ("size", "refused", "text", "hint", "accepted"),
    [
        (("mul", 2, N), 5, "a multiple of 2", "use 4 or 6", 6),
        (("add", ("mul", 2, N), 1), 4, "1 or more, in steps of 2", "use 3 or 5", 5),
        (("add", ("mul", 4, N), -6), 4, "2 or more, in steps of 4", "use 2 or 6", 6),
        (("add", N, 5), 3, "5 or more", "use 6", 6),
    ],
)
def test_the_message_about_a_size_names_the_allowed_sizes(
    size: Expression, refused: int, text: str, hint: str, accepted: int
) -> None:
    arguments = arguments_of(size)
    arguments.bind((torch.zeros(accepted),), {}, STREAM)
    with pytest.raises(CallRefused) as caught:
        arguments.bind((torch.zeros(refused),), {}, STREAM)
    assert caught.value.text == f"input 'x', dim 'n' (axis 0) is {refused}, and must be {text}"
    assert caught.value.hint == hint


@pytest.mark.parametrize("size", [("floordiv", N, 0), ("data", 0), ("pow", N, 10**9)])
def test_a_size_without_a_value_is_a_damaged_package(size: Expression) -> None:
    """The index of a package is not trusted. Its reader does not know the sizes of calls."""
    with pytest.raises(PackageDamaged, match="the shapes of the inputs of 'net' cannot be used"):
        arguments_of(size).bind((torch.zeros(3),), {}, STREAM)
