"""The messages of `trtbuild.compile` name arguments of the call, and never a manifest.

The name of a case in the catalogue has the arguments of the call, such as ``device="gpu"``. The defaults are in the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.messages.catalogue import Case, check_or_write, read
from trtbuild import Input
from trtbuild.driver.in_program import messages
from trtbuild.errors import TrtbuildError

SOURCES = Path(trtbuild.__file__).parent


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.relu(self.layer(x))
        return y if scale is None else y * scale


class FunctionModule(torch.nn.Module):
    """A module whose forward calls a function of one or two tensors."""

    def __init__(self, function: Callable[..., torch.Tensor], two_inputs: bool = False) -> None:
        super().__init__()
        self.function = function
        if two_inputs:
            self.forward = self._both  # type: ignore[method-assign, assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)

    def _both(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


def rows(low: int = 1, mid: int = 4, high: int = 16, **more: Any) -> Input:
    """An input of rows with 8 elements. `low`, `mid` and `high` are its min, opt and max number of rows."""
    return Input(min_shape=(low, 8), opt_shape=(mid, 8), max_shape=(high, 8), **more)


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else x * 3


#: The names that calls in the catalogue use.
NAMES = {
    "torch": torch,
    "Input": Input,
    "Dim": torch.export.Dim,
    "rows": rows,
    "net": Net().eval(),
    "fixes": FunctionModule(lambda x: x * 2 if x.shape[0] == 4 else x).eval(),
    "branch": FunctionModule(_branch).eval(),
    "halves": FunctionModule(lambda x: x.reshape(-1, 2, 8).sum(1)).eval(),
    "both": FunctionModule(lambda x, y: x + y, two_inputs=True).eval(),
    "embeds": FunctionModule(lambda x: torch.nn.functional.embedding(x, torch.ones(9, 4))).eval(),
    "offsets": FunctionModule(lambda x: torch.nn.functional.embedding(x + 9, torch.ones(9, 4))).eval(),
    "exported": torch.export.export(
        Net().eval(),
        (torch.ones(4, 8),),
        dynamic_shapes={"x": {0: torch.export.Dim("rows", min=1, max=16)}},
    ),
    "sorts": FunctionModule(lambda x: x.sort(0).values).eval(),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in read("in_program")])
def test_messages_match_the_catalogue(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "state"))
    arguments = {"module": NAMES["net"], "inputs": [rows()], "target": 89, "device": "cpu", "cache_dir": tmp_path}
    with pytest.raises(TrtbuildError) as caught:
        trtbuild.compile(**(arguments | eval(f"dict({case.name})", dict(NAMES))))
    text = re.sub(r"[^\s(]*test_in_program\.py:\d+", "PROGRAM:LINE", str(caught.value)).replace(str(tmp_path), "CACHE")
    text = re.sub(r"tensorrt-rtx [\d.]+\d", "tensorrt-rtx VERSION", text)
    assert "manifest" not in text
    # A backtick shows that a field of a manifest was not reworded. Only the names below may have backticks.
    assert "`" not in re.sub(r"`precision`|`aten[^`]*`|`model`|`encoder[^`]*`|`\.eval\(\)`", "", text)
    check_or_write("in_program", case, f"{type(caught.value).__name__}\n{text}")


def test_every_text_to_reword_exists() -> None:
    """The longest plain text of each pattern is in the code. Otherwise the pattern would match no error."""
    texts = "".join(path.read_text() for path in sorted(SOURCES.rglob("*.py")) if path != Path(messages.__file__))
    texts = re.sub(r'"\s*\n\s*f?"', "", texts)  # join texts that are written on several lines
    for pattern, _ in messages._REPLACEMENTS:
        words = re.split(r"[^A-Za-z' _]", re.sub(r"\\[bwdS]", ".", pattern.pattern))
        longest = max(words, key=len)
        assert len(longest) >= 4 and longest in texts, pattern.pattern


def test_a_dim_is_written_as_python() -> None:
    assert messages.reword("write dims: {rows: {at: [x.0, y.0], multiple_of: 2}}") == (
        'write dims={"rows": {"at": ["x.0", "y.0"], "multiple_of": 2}}'
    )
