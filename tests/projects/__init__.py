"""Small projects for tests. Each folder is a complete project, except for the files that tests write: weights files
(`write_weights`), and ``words.onnx`` of `comparisons`.

``mlp``
    One model of two linear layers.
``two_models``
    Two models of equal structure with different weights.
``blocks``
    Three equal layers, each in a separate partition. Their code is in a second module.
``weights_file``
    An MLP with a weights file. Its engines are large enough for several chunks in the cache.
``torch_partition``
    One model, in which a layer between two linear layers stays in PyTorch.
``ranker``
    One model with a keyword argument, several outputs, two profiles, two targets, a reference and a Triton repository.
``image_model``
    ``net`` has two TensorRT partitions with a sort in PyTorch between them, two targets, nested outputs, relations between
    dims, and a reference.
    ``bare`` has the same source and no reference. ``torch_only`` has no engine.
``comparisons``
    Models for comparisons with PyTorch. The functions of ``edge`` (integers) and ``zeros`` (floats) have a jump at 0. The
    source of ``words`` is ``words.onnx``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

#: The folder of all projects.
FOLDER = Path(__file__).parent

#: Changes of a manifest, for `copy_project`: old text, new text.
ADA_AND_AMPERE = (
    ("  ada: {sm: 89}\n", "  ada: {sm: 89}\n  ampere: {sm: 86}\n"),
    ("targets: [ada]", "targets: [ada, ampere]"),
)
WITH_WEIGHTS = ("    inputs: {x: {}}\n", "    weights: net.safetensors\n    inputs: {x: {}}\n")

#: The shapes of the weights of `blocks` and of `weights_file`, for `write_weights`.
BLOCKS = {
    f"layers.{number}.linear.{name}": shape
    for number in range(3)
    for name, shape in (("weight", (8, 8)), ("bias", (8,)))
}
WEIGHTS_FILE = {"0.weight": (640, 640), "0.bias": (640,), "2.weight": (640, 640), "2.bias": (640,)}


def copy_project(name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Copy the project `name` into `folder`, and replace text in its manifest. Return `folder`.

    `folder` may exist. `changes` are pairs of an old and a new text, for `edit`.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FOLDER / name, folder, ignore=ignored, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for old, new in changes:
        edit(folder / "trtbuild.yaml", old, new)
    return folder


def edit(file: Path, old: str, new: str) -> None:
    """Replace text in a file. The file must contain the old text."""
    text = file.read_text()
    assert old in text, f"{file} does not contain {old!r}"
    file.write_text(text.replace(old, new))


def write_weights(file: Path, shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0, changed: str = "") -> None:
    """Write a safetensors file of random float32 tensors. Add 1 to the tensor with the name `changed`."""
    random = np.random.default_rng(seed)
    tensors = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if changed:
        tensors[changed] = tensors[changed] + 1
    save_file(tensors, file)
