"""A package that trtbuild's runtime serves in Triton's Python backend, with any partitions and any toolchain."""

from __future__ import annotations

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.outputs.triton.tensors import described, max_batch_size
from trtbuild.driver.outputs.triton.text_format import Message, Value

#: The package's place in the model's directory.
PACKAGE = "1/package"

MODEL_FILE = "1/model.py"
MODEL = b'''\
"""Serves the package beside this file. Written by trtbuild, which must be installed where this runs."""

from trtbuild import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def configuration(index: PackageIndex) -> Message:
    """Return the model's configuration. Scalars have dims [1]; the model removes that axis and adds it again."""
    batch = max_batch_size(index)
    fields: list[tuple[str, Value]] = [("name", index.model), ("backend", "python"), ("max_batch_size", batch)]
    for kind, tensors in (("input", index.inputs), ("output", index.outputs)):
        fields += [(kind, tuple(described(tensor.name, tensor, batched=batch > 0))) for tensor in tensors]
    # Triton must not move tensors to the CPU: the runtime copies them to the GPU if necessary
    fields.append(("parameters", (("key", "FORCE_CPU_ONLY_INPUT_TENSORS"), ("value", (("string_value", "no"),)))))
    return fields
