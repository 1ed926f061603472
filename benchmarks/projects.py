"""Write the projects that are measured, as a user would write them: sources, a manifest, a weights file.

``python -m benchmarks.projects many DIR --models 200 --targets 5 --build`` calls the function `write_many`, and
``python -m benchmarks.projects vit DIR --granularity --weights`` calls `write_vit`. A file is written only if its contents
change, so an unchanged file keeps its times. This module does not depend on trtbuild's code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: GPU architectures (SM) for which TensorRT-RTX can build models with float32 matrix products.
SMS = (80, 86, 89, 120, 121)

_MANY_HEAD = """\
version: 1
targets:
{targets}
profiles:
  rows:
    x: {{min: [1, 16], opt: [4, 16], max: [8, 16]}}
defaults:
  inputs: {{x: {{}}}}
  dims: {{batch: x.0}}
  profiles: [rows]
  targets: [{names}]
models:
"""

_MANY_BLOCK = '''\
"""The block that all models of this project use."""

import torch


class Block(torch.nn.Module):
    """Two layers with a residual connection. `width` is the size between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, width)
        self.down = torch.nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))
'''

_MANY_MODEL = '''\
"""Model {number}."""

import torch

from models.block import Block


def build() -> torch.nn.Module:
    return Block({width}).eval()
'''

#: The source file of the model of `write_vit`.
VIT_MODEL = '''\
"""ViT of the transformers library, from a configuration: nothing is downloaded, weights are random and seeded."""

import torch
from transformers import ViTConfig, ViTModel


def build(layers: int, hidden: int, image: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=16,
    )
    model = ViTModel(config, add_pooling_layer=False)
    # edits of single layers go here
    return model.eval()
'''

_EDIT_MARK = "    # edits of single layers go here\n"

_VIT_MANIFEST = """\
version: 1
targets:
{targets}
profiles:
{profiles}
models:
{models}"""

_VIT_ENTRY = """\
  {name}:
    source: {{python: "models.vit:build", kwargs: {{layers: {layers}, hidden: {hidden}, image: {image}}}}}
{weights}    inputs: {{pixel_values: {{}}}}
    dims: {{batch: pixel_values.0}}
    profiles: [{profile}]
    targets: [{names}]
{partition}"""

_WIDE_MODEL = '''\
"""A chain of wide layers without biases. All weights are different, seeded, and made in place."""

import torch


class Wide(torch.nn.Module):
    """Layers of `width` x `width` weights, with residual connections."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        parts = (torch.nn.Linear(width, width, bias=False, device="meta") for _ in range(layers))
        self.layers = torch.nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def build(layers: int, width: int) -> torch.nn.Module:
    model = Wide(layers, width).to_empty(device="cpu")
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            layer.weight.uniform_(-0.02, 0.02, generator=torch.Generator().manual_seed(number))
    return model.eval()
'''

_WIDE_MANIFEST = """\
version: 1
targets:
  sm89: {{sm: 89}}
profiles:
  rows:
    x: {{min: [1, {width}], opt: [2, {width}], max: [4, {width}]}}
models:
  wide:
    source: {{python: "models.wide:build", kwargs: {{layers: {layers}, width: {width}}}}}
    inputs: {{x: {{}}}}
    dims: {{batch: x.0}}
    profiles: [rows]
    targets: [sm89]
    reference: true
"""

_SAVE_WEIGHTS = """\
import json, sys
from safetensors.torch import save_file
from models.vit import build
save_file(build(**json.loads(sys.argv[1])).state_dict(), sys.argv[2])
"""


def write_many(folder: Path, model_count: int = 200, target_count: int = 5) -> Path:
    """Write a project of many tiny models for the first `target_count` GPU architectures of `SMS`.

    Each model has its own layer width and source file. All models import ``models/block.py``.
    """
    sms = _sms(target_count)
    entries = "".join(f'  m{n:03}: {{source: {{python: "models.m{n:03}:build"}}}}\n' for n in range(model_count))
    head = _MANY_HEAD.format(targets=_targets(sms), names=", ".join(f"sm{sm}" for sm in sms))
    write(folder / "trtbuild.yaml", head + entries)
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "block.py", _MANY_BLOCK)
    for number in range(model_count):
        text = _MANY_MODEL.format(number=number, width=16 + number)
        write(folder / "models" / f"m{number:03}.py", text)
    return folder


def write_vit(
    folder: Path,
    *,
    layers: int = 12,
    hidden: int = 768,
    image: int = 224,
    granularity: bool = False,
    weights: bool = False,
    sms: Sequence[int] = (89,),
    profile_sets: int = 1,
) -> Path:
    """Write the project of a vision transformer, by default ViT-B, with batches from 1 to 8, for the targets `sms`.

    With `granularity`, each encoder layer is an engine. With `weights`, the weights come from
    ``weights/vit.safetensors``. The project has `profile_sets` models. They have the same source, but different profiles:
    the second model has batches from 1 to 16.
    """
    sizes = {"layers": layers, "hidden": hidden, "image": image}
    profiles, models = "", ""
    for number in range(profile_sets):
        name = "vit" if number == 0 else f"vit{number + 1}"
        opt, largest = 4 * (number + 1), 8 * (number + 1)
        shapes = f"min: [1, {_chw(image)}], opt: [{opt}, {_chw(image)}], max: [{largest}, {_chw(image)}]"
        profiles += f"  batch{largest}:\n    pixel_values: {{{shapes}}}\n"
        models += _VIT_ENTRY.format(
            name=name,
            **sizes,
            weights="    weights: weights/vit.safetensors\n" if weights else "",
            profile=f"batch{largest}",
            names=", ".join(f"sm{sm}" for sm in sms),
            partition='    partition: {granularity: ["layers.*"]}\n' if granularity else "",
        )
    write(folder / "trtbuild.yaml", _VIT_MANIFEST.format(targets=_targets(sms), profiles=profiles, models=models))
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "vit.py", VIT_MODEL)
    if weights:
        _save_weights(folder, sizes)
    return folder


def write_wide(folder: Path, layers: int, width: int) -> Path:
    """Write the project of a model whose weights are large: `layers` float32 matrices of `width` x `width`."""
    write(folder / "trtbuild.yaml", _WIDE_MANIFEST.format(layers=layers, width=width))
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "wide.py", _WIDE_MODEL)
    return folder


def edit_layer(folder: Path, layer: int, activation: str = "ReLU") -> None:
    """In the source of a `write_vit` project, replace the activation function of one layer. Earlier edits are undone."""
    edit = f"    model.layers[{layer}].mlp.activation_fn = torch.nn.{activation}()\n"
    write(folder / "models" / "vit.py", VIT_MODEL.replace(_EDIT_MARK, edit))


def undo_edits(folder: Path) -> None:
    """Restore the source of a `write_vit` project."""
    write(folder / "models" / "vit.py", VIT_MODEL)


def replace_weights(path: Path, layer: int) -> None:
    """Change all tensors of one layer in a safetensors file, as fine-tuning the layer does."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    changed = [name for name in tensors if f"layers.{layer}." in name]
    if not changed:
        raise ValueError(f"{path} has no layer {layer}")
    for name in changed:
        tensors[name] = tensors[name] * tensors[name].dtype.type(1.01) + tensors[name].dtype.type(0.001)
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def _save_weights(folder: Path, sizes: Mapping[str, int]) -> None:
    """Write the weights file of a `write_vit` project, unless there is a file for these sizes already.

    A file that `replace_weights` has changed stays, too.
    """
    path, sizes_file = folder / "weights" / "vit.safetensors", folder / "weights" / "sizes.json"
    if path.exists() and sizes_file.exists() and json.loads(sizes_file.read_text()) == sizes:
        return
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _SAVE_WEIGHTS, json.dumps(sizes), str(path.relative_to(folder))]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    sizes_file.write_text(json.dumps(sizes) + "\n")


def _sms(count: int) -> tuple[int, ...]:
    if not 1 <= count <= len(SMS):
        raise ValueError(f"1 to {len(SMS)} targets, not {count}")
    return SMS[:count]


def _targets(sms: Sequence[int]) -> str:
    return "\n".join(f"  sm{sm}: {{sm: {sm}}}" for sm in sms)


def _chw(image: int) -> str:
    return f"3, {image}, {image}"


def write(path: Path, text: str) -> None:
    """Write a file, and make its folders. A file that already has this text is not written again."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def parse_arguments(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Return option name → value: `kind`, `folder`, `build`, and the options of this kind of project."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.projects", description=main.__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    many_parser = kinds.add_parser("many", help="many tiny models for several targets")
    many_parser.add_argument("--models", dest="model_count", type=int, default=200, metavar="N")
    many_parser.add_argument("--targets", dest="target_count", type=int, default=5, metavar="N")
    vit_parser = kinds.add_parser("vit", help="a vision transformer")
    vit_parser.add_argument("--layers", type=int, default=12)
    vit_parser.add_argument("--hidden", type=int, default=768)
    vit_parser.add_argument("--image", type=int, default=224)
    vit_parser.add_argument("--granularity", action="store_true", help="one engine for each encoder layer")
    vit_parser.add_argument("--weights", action="store_true", help="weights in a safetensors file")
    vit_parser.add_argument("--targets", dest="target_count", type=int, default=1, metavar="N")
    vit_parser.add_argument("--profile-sets", type=int, default=1)
    for project_parser in (many_parser, vit_parser):
        project_parser.add_argument("folder", type=Path, metavar="DIR")
        project_parser.add_argument("--build", action="store_true", help="also build it, with its own cache/")
    return vars(parser.parse_args(arguments))


def main() -> None:
    """Write one of the projects. With ``--build``, build it, too."""
    options = parse_arguments()
    build, kind, folder = options.pop("build"), options.pop("kind"), options.pop("folder")
    if kind == "many":
        write_many(folder, **options)
    else:
        target_count = options.pop("target_count")
        # a single target is SM 89, the default of `write_vit`, so that the project is the same as in the benchmarks
        write_vit(folder, sms=(89,) if target_count == 1 else _sms(target_count), **options)
    if build:
        environment = {name: value for name, value in os.environ.items() if name != "TRTBUILD_CACHE_DIR"}
        trtbuild = Path(sys.executable).with_name("trtbuild")
        sys.exit(subprocess.run([trtbuild, "build"], cwd=folder, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
