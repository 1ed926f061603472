"""Write the projects that are measured on a GPU: the examples of manifests/, and the models that docs/gpu.md describes.

After ``python -m benchmarks.gpu write``, ``trtbuild build --until convert`` runs the steps that need no GPU, on any
machine. A file is written only if its contents differ.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu import manifests
from benchmarks.projects import VIT_MODEL, write

_EXAMPLES = Path(__file__).parents[2] / "manifests"
#: The source files of models, which the functions below copy into the projects.
_MODELS = Path(__file__).parent / "models"
#: The targets in the manifests of the examples. `write_examples` replaces this text.
_TARGETS = re.compile(r"targets: \[ampere, ada, blackwell\]")

#: TensorRT's own kernels for convolutions (tactic sources), for hosts without cuDNN.
BUILT_IN_CONVOLUTIONS = ("edge_mask_convolutions", "jit_convolutions")


@dataclass(frozen=True)
class Hardware:
    """The GPU and the toolchain for which the projects are built."""

    sm: int = 90
    toolchain: str = "tensorrt"
    version: str | None = None
    #: The libraries whose kernels TensorRT may use (tactic sources). None for TensorRT's default. TensorRT 8.6 uses cuBLAS
    #: and cuDNN by default, so the tuple is empty for a GPU host without them.
    tactic_sources: tuple[str, ...] | None = None

    def builder(self, *settings: str) -> str:
        """Return the manifest's `builder` field. Empty if there are no `settings`, and `tactic_sources` is None."""
        if self.tactic_sources is not None:
            settings = (*settings, f"tactic_sources: [{', '.join(self.tactic_sources)}]")
        return f"builder: {{{', '.join(settings)}}}" if settings else ""

    def defaults(self) -> str:
        """Return the usual `defaults` of a manifest: the target and the tactic sources."""
        return ", ".join(filter(None, ("targets: [gpu]", self.builder())))

    def manifest(self) -> str:
        pin = f', version: "{self.version}"' if self.version else ""
        return f"version: 1\ntargets:\n  gpu: {{sm: {self.sm}, toolchain: {self.toolchain}{pin}}}\n"


def write_examples(folder: Path, hardware: Hardware) -> Path:
    """Write the examples as a project for `hardware`.

    Four variants are added: two examples in float16, mlp without TF32, and BERT in float32.
    """
    for source in sorted(path for path in _EXAMPLES.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        if source.name == "targets.yaml":
            continue
        copy, data = folder / "manifests" / source.relative_to(_EXAMPLES), source.read_bytes()
        if source.suffix == ".yaml":
            data = _TARGETS.sub(hardware.defaults(), data.decode()).encode()
        if not copy.exists() or copy.read_bytes() != data:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "half.yaml", manifests.HALF_EXAMPLES.format(defaults=hardware.defaults()))
    write(
        folder / "manifests" / "exact.yaml",
        manifests.FLOAT32_EXAMPLES.format(
            builder=hardware.builder(), builder_without_tf32=hardware.builder("tf32: false")
        ),
    )
    write(folder / "manifests" / "vision.profiles.yaml", manifests.HALF_PROFILES)
    return folder


def write_vit(folder: Path, hardware: Hardware, *, layers: int = 12, hidden: int = 768, image: int = 224) -> Path:
    """Write ViT-B as one engine (`whole`, `whole_half`) and as one engine for each layer (`by_layer`, `by_layer_half`)."""
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    write(folder / "manifests" / "models" / "vit_b.py", VIT_MODEL)
    for suffix in ("", "_half"):
        for name, partition in (("whole", ""), ("by_layer", manifests.BY_LAYER)):
            text = manifests.VIT.format(
                name=name + suffix,
                defaults=hardware.defaults(),
                precision="float16" if suffix else "float32",
                layers=layers,
                hidden=hidden,
                image=image,
                partition=partition,
            )
            write(folder / "manifests" / f"{name}{suffix}.yaml", text)
    return folder


def write_resnet(folder: Path, hardware: Hardware) -> Path:
    """Write ResNet-50 in float32 and float16.

    If `tactic_sources` is not None, the host has no cuDNN. Then TensorRT may use only its own convolutions.
    """
    if hardware.tactic_sources is not None:
        hardware = replace(hardware, tactic_sources=BUILT_IN_CONVOLUTIONS)
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    write(folder / "manifests" / "models" / "resnet50.py", (_MODELS / "resnet50.py").read_text())
    write(folder / "manifests" / "resnet.yaml", manifests.RESNET.format(defaults=hardware.defaults()))
    return folder


def write_quantized(
    folder: Path, hardware: Hardware, *, layers: int = 12, hidden: int = 768, samples: int = 16
) -> Path:
    """Write ResNet-50 and BERT-base, each in float32, float16, int8, and int8 with float16 for all other layers.

    The int8 models are calibrated with `samples` batches of 4.
    """
    if hardware.tactic_sources is not None:
        hardware = replace(hardware, tactic_sources=BUILT_IN_CONVOLUTIONS)
    models = ""
    for entry, data, method in (
        (manifests.QUANTIZED_RESNET, "images", "entropy"),
        (manifests.QUANTIZED_BERT, "texts", "max"),
    ):
        int8 = manifests.INT8.format(method=method, samples=data, count=samples)
        half = "    precision: float16\n"
        for name, rest in (("float32", ""), ("float16", half), ("int8", int8), ("int8_float16", half + int8)):
            models += entry.format(name=name, layers=layers, hidden=hidden, rest=rest)
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    for source in ("resnet50.py", "bert.py", "samples.py"):
        write(folder / "manifests" / "models" / source, (_MODELS / source).read_text())
    text = manifests.QUANTIZED.format(defaults=hardware.defaults(), models=models)
    write(folder / "manifests" / "quantized.yaml", text)
    return folder


def write_decoders(folder: Path, hardware: Hardware, *, layers: int = 8, hidden: int = 512) -> Path:
    """Write decoders of `layers` layers: three models of transformers' Llama, and one whose tokens are int32.

    `hidden` is at least 256.
    """
    size = {"layers": layers, "hidden": hidden}
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    write(folder / "size.json", json.dumps(size))
    for source in (_EXAMPLES / "state" / "decoders.py", _MODELS / "token_decoder.py"):
        write(folder / "models" / source.name, source.read_text())
    text = manifests.DECODERS.format(
        # The engines must generate the same tokens as eager PyTorch, which computes float32 without TF32.
        defaults=f"targets: [gpu], {hardware.builder('tf32: false')}",
        size=json.dumps(size),
        layers=layers,
        heads=hidden // 128,  # the number of key and value heads: half of the query heads, which have 64 channels each
        last=8 * hidden - 1,  # the vocabulary has `8 * hidden` tokens
    )
    write(folder / "trtbuild.yaml", text)
    return folder


def write_plugins(folder: Path, hardware: Hardware) -> Path:
    """Write a model with TensorRT's plugin ROIAlign_TRT: version 2 for TensorRT-RTX, version 1 for TensorRT."""
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "regions.py", (_MODELS / "regions.py").read_text())
    version = "2" if hardware.toolchain == "tensorrt-rtx" else "1"
    write(folder / "trtbuild.yaml", manifests.PLUGINS.format(defaults=hardware.defaults(), version=version))
    return folder
