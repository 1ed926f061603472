"""Files that the safetensors library writes or rejects. `driver/project/test_weights_file.py` tests other damaged files."""

from __future__ import annotations

import pytest
import safetensors
import safetensors.torch
import torch

from trtbuild.core.values.safetensors import metadata_of, read_tensors


def test_a_file_of_the_library_is_read() -> None:
    values = {"b": torch.arange(6).reshape(2, 3), "a": torch.ones(3, dtype=torch.bfloat16), "none": torch.zeros(0, 4)}
    data = safetensors.torch.save(values, {"made by": "the library"})
    result = {entry.name: (entry.dtype, entry.shape, raw) for entry, raw in read_tensors(data)}
    assert result == {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape), value.view(torch.uint8).numpy().tobytes())
        for name, value in values.items()
    }


@pytest.mark.parametrize("change", [lambda data: data + b"x", lambda data: data[:-1]])
def test_a_file_that_the_library_rejects_is_rejected(change: object) -> None:
    data = change(safetensors.torch.save({"a": torch.ones(3)}))  # type: ignore[operator]
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load(data)
    with pytest.raises(ValueError, match="cut off or added to"):
        list(read_tensors(data))


def test_the_metadata_of_a_file_of_the_library_is_read() -> None:
    assert metadata_of(safetensors.torch.save({"a": torch.ones(3)}, {"made by": "the library"})) == {
        "made by": "the library"
    }
    assert metadata_of(safetensors.torch.save({"a": torch.ones(3)})) == {}


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, b"[]", b'{"__metadata__": [1]}', b'{"__metadata__": {"trtbuild": 1}}']
)
def test_invalid_metadata_is_a_value_error(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"its (header|metadata)"):
        metadata_of(len(header).to_bytes(8, "little") + header)
