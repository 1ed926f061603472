"""What an engine step is told: plain values and digests, so that any worker that reaches the store can do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.model.spec import BuilderSettings, ShapeRange, Target

#: What an engine worker finds in its environment on every machine. It is a part of every engine's key.
ENGINE_ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Weight:
    """One weight: logical row-major bytes, named by their SHA-256, of a dtype and shape. Numpy/torch dtype names."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


#: What a partition says of an input or output: dtype (torch's name), and sizes, None where they are dynamic.
Declared = tuple[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class EngineJob:
    """Compile the ONNX model `onnx` (a blob's SHA-256) with its weights into one plan.

    The ONNX model's inputs are ``i0…``, its outputs ``o0…``, its weights external initializers ``w0…``, filled with
    `weights` in order. `profiles` hold, per optimization profile, a shape range for each input in order.

    `inputs` and `outputs` are what the partition says of them; None where nobody says. The compiled network is held to it.
    """

    onnx: str
    weights: tuple[Weight, ...]
    profiles: tuple[tuple[ShapeRange, ...], ...]
    settings: BuilderSettings
    target: Target
    toolchain_version: str
    inputs: tuple[Declared, ...] | None = None
    outputs: tuple[Declared, ...] | None = None
