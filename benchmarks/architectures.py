"""Write projects for cold builds: ResNet-50, BERT and Whisper's encoder, from the transformers library.

A cold build starts with an empty cache. The models have their published sizes. Nothing is downloaded, because the weights
are random and seeded. Each project has one model with batches from 1 to 8. ``measurements/scripts/straight_model.py``
builds an engine of this model without trtbuild.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.projects import write

_MODULE = '''\
"""{title}: random weights, nothing is downloaded."""

import torch
from transformers import {imports}


def build(**sizes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return {module}.eval()
'''

_MANIFEST = """\
version: 1
targets:
  sm89: {{sm: 89}}
profiles:
  batch8: {profile}
models:
  {name}:
    source: {{python: "models.{name}:build", kwargs: {sizes}}}
    inputs: {inputs}
    dims: {{batch: {{at: {places}}}}}
    profiles: [batch8]
    targets: [sm89]
"""


@dataclass(frozen=True)
class Input:
    """An input of a module. `shape` leaves out the first axis, which is the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """A module of transformers. `module` is a Python expression that makes it from the dict `sizes`.

    `small` is the value of `sizes` for quick tests. With an empty dict, the module has its published sizes.
    """

    title: str
    imports: str
    module: str
    inputs: tuple[Input, ...]
    small: dict[str, Any]


ARCHITECTURES: dict[str, Architecture] = {
    "resnet50": Architecture(
        "ResNet-50",
        "ResNetConfig, ResNetForImageClassification",
        "ResNetForImageClassification(ResNetConfig(num_labels=1000, **sizes))",
        (Input("pixel_values", "float32", (3, 224, 224)),),
        {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8},
    ),
    "bert": Architecture(
        "BERT (base)",
        "BertConfig, BertModel",
        "BertModel(BertConfig(**sizes), add_pooling_layer=False)",
        (Input("input_ids", "int64", (128,)), Input("attention_mask", "int64", (128,))),
        {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    ),
    "whisper": Architecture(
        "The encoder of Whisper (base)",
        "WhisperConfig, WhisperModel",
        "WhisperModel(WhisperConfig(**{'d_model': 512, 'encoder_layers': 6, 'encoder_attention_heads': 8, "
        "'encoder_ffn_dim': 2048, 'decoder_layers': 1, 'decoder_attention_heads': 8, **sizes})).encoder",
        (Input("input_features", "float32", (80, 3000)),),
        {"d_model": 64, "encoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    ),
}


def write_architecture(folder: Path, name: str, *, small: bool = False) -> Path:
    """Write the project of the architecture `name`. A file that already has these contents is not written again."""
    architecture = ARCHITECTURES[name]
    profile = {
        each.name: {kind: [batch, *each.shape] for kind, batch in (("min", 1), ("opt", 4), ("max", 8))}
        for each in architecture.inputs
    }
    manifest = _MANIFEST.format(
        name=name,
        profile=json.dumps(profile),
        sizes=json.dumps(architecture.small if small else {}),
        inputs=json.dumps({each.name: {"dtype": each.dtype, "keyword": True} for each in architecture.inputs}),
        places=json.dumps([f"{each.name}.0" for each in architecture.inputs]),
    )
    source = _MODULE.format(title=architecture.title, imports=architecture.imports, module=architecture.module)
    write(folder / "trtbuild.yaml", manifest)
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / f"{name}.py", source)
    return folder


def script_arguments(name: str) -> list[str]:
    """The arguments of ``straight_model.py`` for an architecture: its name, and its inputs as JSON."""
    return [name, json.dumps([[each.name, each.dtype, each.shape] for each in ARCHITECTURES[name].inputs])]
