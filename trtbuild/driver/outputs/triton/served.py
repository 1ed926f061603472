"""A package that trtbuild's runtime serves in Triton's Python backend. All packages can be served in this way."""

from __future__ import annotations

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.outputs.triton.tensors import max_batch_size, tensor_fields
from trtbuild.driver.outputs.triton.text_format import Message, Value

#: The package's directory in the model's directory.
PACKAGE_FOLDER = "1/package"

#: The file that Triton's Python backend runs, and its content.
MODEL_FILE = "1/model.py"
MODEL_CODE = b'''\
"""Serves the package beside this file. Written by trtbuild, which must be installed where this runs."""

from trtbuild import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def configuration(index: PackageIndex) -> Message:
    """Return the model's configuration. `TritonPythonModel` converts between scalars and their dims [1]."""
    batch_size = max_batch_size(index)
    fields: list[tuple[str, Value]] = [("name", index.model), ("backend", "python"), ("max_batch_size", batch_size)]
    for kind, tensors in (("input", index.inputs), ("output", index.outputs)):
        fields += [(kind, tuple(tensor_fields(tensor.name, tensor, batched=batch_size > 0))) for tensor in tensors]
    # Triton must leave tensors on their device: the runtime copies them to the GPU if necessary
    fields.append(("parameters", (("key", "FORCE_CPU_ONLY_INPUT_TENSORS"), ("value", (("string_value", "no"),)))))
    return fields
