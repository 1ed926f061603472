"""The job of an engine step. It names its files by their digests, so any worker that can read the store can run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import ShapeRange, Target

#: Environment variables of an engine worker, the same on every machine. They are part of every engine's key.
ENGINE_ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight. `dtype` is NumPy's or torch's name; `sha256` is the digest of the values as row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


#: The type of an input or output of a partition: dtype (torch's name) and sizes, with None for a dynamic size.
DeclaredType = tuple[str, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True)
class EngineJob:
    """Compile an ONNX model with its weights into one plan (a serialized engine).

    `onnx` is the SHA-256 of the ONNX model. For a TensorRT network, it is the SHA-256 of the network's document
    (`trtbuild.core.partition.network_document`).

    The ONNX model's inputs are named ``i0…`` and its outputs ``o0…``. Its weights are external initializers ``w0…``, which
    get the values of `weights` in order. `profiles` has a shape range for each input of each optimization profile.

    `inputs` and `outputs` are the types that the partition declares, or None if they are not known. The types of the
    compiled network must be equal to them.

    `plugin_library` is the SHA-256 of the project's library of plugins. It is None if the model calls no plugin of this
    library.
    """

    onnx: str
    weights: tuple[Weight, ...]
    profiles: tuple[tuple[ShapeRange, ...], ...]
    settings: BuilderSettings
    target: Target
    toolchain_version: str
    inputs: tuple[DeclaredType, ...] | None = None
    outputs: tuple[DeclaredType, ...] | None = None
    plugin_library: str | None = None

    @property
    def toolchain_text(self) -> str:
        """The toolchain with its version, for messages."""
        return f"{self.target.toolchain} {self.toolchain_version}"
