"""A package that trtbuild's runtime serves, in Triton's Python backend: any partitions, any toolchain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.driver.outputs.triton.tensors import described, max_batch_size
from trtbuild.driver.outputs.triton.text_format import Message, Value

#: Where the package lies in the model's directory.
PACKAGE = "1/package"

MODEL_FILE = "1/model.py"
MODEL = b'''\
"""Serves the package that lies beside this file. Written by trtbuild, which must be installed where this runs."""

from trtbuild import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def configuration(index: Mapping[str, Any]) -> Message:
    """The model's configuration. Scalars are [1]: the model itself takes the axis away and puts it back."""
    batch = max_batch_size(index)
    fields: list[tuple[str, Value]] = [("name", index["model"]), ("backend", "python"), ("max_batch_size", batch)]
    for kind in ("input", "output"):
        fields += [(kind, tuple(described(tensor["name"], tensor, batched=batch > 0))) for tensor in index[f"{kind}s"]]
    # tensors stay where they are: the runtime puts them onto the GPU where they must go
    fields.append(("parameters", (("key", "FORCE_CPU_ONLY_INPUT_TENSORS"), ("value", (("string_value", "no"),)))))
    return fields
