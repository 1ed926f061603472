"""If inputs do not fit `forward`, the hint of the error shows the signature of `forward`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from trtbuild.core.model.spec import Input
from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments
from trtbuild.stages.trace.export.signature import bind_to_forward
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners


class Model(nn.Module):
    def forward(self, image: Any, mask: Any, *, scale: Any = None) -> Any: ...


def error_of(job_of: Callable[..., Any], *inputs: Input) -> SourceError:
    job = job_of({entry.name: (2, 2) for entry in inputs}, inputs=inputs)
    args, kwargs = call_arguments(inputs, [None] * len(inputs))
    with pytest.raises(SourceError) as caught:
        bind_to_forward(Model(), job, args, kwargs, Frames(FileOwners(), Path(__file__).parents[4]))
    assert caught.value.code == "signature"
    signature = f"the model takes (image, mask, *, scale=None) (tests/stages/trace/export/test_signature.py:{_line()})"
    assert signature in (caught.value.hint or "")
    return caught.value


def _line() -> int:
    return Model.forward.__code__.co_firstlineno


def test_rejects_a_keyword_that_forward_does_not_have(job_of: Callable[..., Any]) -> None:
    error = error_of(job_of, Input("image"), Input("mask"), Input("scael", keyword=True))
    assert error.text == "forward has no argument 'scael'"
    assert (error.hint or "").startswith("did you mean 'scale'?")
    assert error.line == 12, "the line is not that of the input in the manifest"


def test_rejects_a_missing_argument(job_of: Callable[..., Any]) -> None:
    error = error_of(job_of, Input("image"))
    assert error.text == "forward needs 'mask', which the manifest's inputs do not give"
    assert "`mask: {}`" in (error.hint or "")


def test_rejects_more_inputs_than_forward_takes(job_of: Callable[..., Any]) -> None:
    error = error_of(job_of, Input("image"), Input("mask"), Input("scale"))
    assert error.text == "the manifest has 3 positional inputs, and forward takes 2"
    assert "'scale', or write `keyword: true`" in (error.hint or "")
    assert error.line == 12


def test_rejects_an_input_that_is_passed_twice(job_of: Callable[..., Any]) -> None:
    error = error_of(job_of, Input("first"), Input("second"), Input("mask", keyword=True))
    assert error.text.startswith("'mask' is passed by name and also by position")
