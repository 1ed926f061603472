"""Hints about known kinds of exceptions of user code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled, StrictDataclassFieldValidationError

from trtbuild.core.model.spec import Input
from trtbuild.stages.trace.user_code.advice import advice, misspelt_module, shape_advice, value_advice

INPUTS = (Input("x", "float16"),)
#: The argument `default_advice` of `shape_advice`.
DEFAULT = "look at the shapes"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ModuleNotFoundError("No module named 'timmm'", name="timmm"), f"{sys.executable} -m pip install timmm"),
        (ModuleNotFoundError("No module named 'json.nothing'", name="json.nothing"), "json is installed, but has no"),
        (FileNotFoundError(2, "No such file or directory", "weights/none.pt"), "relative paths start at the project"),
        (SystemExit(3), "__main__"),
        (AssertionError("Torch not compiled with CUDA enabled"), "traced on the CPU"),
        (RuntimeError("No CUDA GPUs are available"), "traced on the CPU"),
        (URLError("refused"), "should not depend on the network"),
        (ConnectionResetError(), "should not depend on the network"),
        (OfflineModeIsEnabled("offline"), "should not depend on the network"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_known_exception_has_a_hint(error: BaseException, hint: str) -> None:
    assert hint in (advice(error) or "")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("depth"),
        FileNotFoundError(2, "", "/abs"),
        OSError(),
        StrictDataclassFieldValidationError("hidden_size", TypeError("expected int")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_exceptions_have_no_hint(error: BaseException) -> None:
    assert advice(error) is None


def test_the_hint_about_a_module_beside_the_failing_file_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    error = ModuleNotFoundError("No module named 'helper'", name="helper")
    assert "is in that file's folder" in (advice(error, str(tmp_path / "net.py")) or "")
    assert "pip install helper" in (advice(error, str(tmp_path / "other/net.py")) or "")


def test_the_most_similar_module_is_searched_in_the_folder_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/training.py").touch()
    assert misspelt_module("models.trainign", [tmp_path]) == "models.training"
    assert misspelt_module("modles", [tmp_path]) == "models"
    assert misspelt_module("nowhere.at_all", [tmp_path]) is None


def test_dtype_errors_of_torch_have_hints_about_the_manifest() -> None:
    def error_of(call: Callable[[], object]) -> Exception:
        with pytest.raises(RuntimeError) as caught:
            call()
        return caught.value

    float16_error = error_of(lambda: torch.nn.Linear(8, 8)(torch.zeros(2, 8, dtype=torch.float16)))
    assert "declares x: float16: write the dtype" in (shape_advice(float16_error, INPUTS, DEFAULT) or "")
    index_error = error_of(lambda: torch.nn.Embedding(8, 8)(torch.zeros(2)))
    assert "x: {dtype: int64}" in (shape_advice(index_error, INPUTS, DEFAULT) or "")
    width_error = error_of(lambda: torch.nn.Linear(16, 8)(torch.zeros(2, 8)))
    assert shape_advice(width_error, INPUTS, DEFAULT) == DEFAULT
    assert shape_advice(NotImplementedError(), INPUTS, DEFAULT) is None
    assert shape_advice(AttributeError("head"), INPUTS, DEFAULT) is None


def test_the_hint_about_integers_that_the_model_does_not_accept_suggests_a_range() -> None:
    beyond = IndexError("index out of range in self")
    ids, with_range = Input("ids", "int64"), Input("pos", "int32", range=(5, 9))
    assert "`ids: {dtype: int64, range: [LOWEST, HIGHEST]}`" in (value_advice(beyond, (with_range, ids)) or "")
    assert "from `pos: {range: [5, 9]}`: correct the range" in (value_advice(beyond, (*INPUTS, with_range)) or "")
    assert value_advice(beyond, INPUTS) is None  # INPUTS has no integer input
    assert value_advice(IndexError("Dimension out of range (expected [-1, 0])"), (ids,)) is None
    assert value_advice(RuntimeError("out of memory"), (ids,)) is None
