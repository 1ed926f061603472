"""The projects that are measured on a GPU: the examples of manifests/, ViT-B and ResNet-50, for one target.

ViT-B is built as one engine and with an engine for each layer, each time in float32 and in float16. ``write`` copies
and writes the projects. Then ``trtbuild build --until convert`` runs the steps that need no GPU, on any machine. A
file that exists already with equal contents is not written again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.projects import _VIT_MODEL, write

_EXAMPLES = Path(__file__).parents[2] / "manifests"
_TARGETS = re.compile(r"targets: \[ampere, ada, blackwell\]")

#: Two of the examples, in float16.
_HALF = """\
# The examples in float16.
version: 1
include: [targets.yaml, vision.profiles.yaml]
defaults: {{{defaults}, reference: true, precision: float16}}
models:
  class_token_half:
    source: {{python: "models.class_token:ClassToken"}}
    inputs: {{x: {{dtype: float32}}}}
    dims: {{batch: {{at: [x.0]}}}}
    profiles: [half_tokens]
  detector_half:
    source: {{python: "models.detector:build", kwargs: {{classes: 8}}}}
    inputs: {{image: {{}}}}
    dims:
      height: {{at: [image.2], multiple_of: 32}}
      width: {{at: [image.3], multiple_of: 32}}
    profiles: [half_square, half_wide]
"""
#: An example without TF32, to measure the error of float32 alone; and BERT in float32.
_EXACT = """\
version: 1
include: [targets.yaml]
defaults: {{targets: [gpu]}}
profiles:
  exact_features:
    x: {{min: [1, 32], opt: [16, 32], max: [64, 32]}}
  exact_text:
    input_ids: {{min: [1, 4], opt: [4, 32], max: [8, 128]}}
    attention_mask: {{min: [1, 4], opt: [4, 32], max: [8, 128]}}
models:
  mlp_exact:
    source: {{exported_program: programs/mlp.pt2}}
    inputs: {{x: {{}}}}
    dims: {{batch: {{at: [x.0]}}}}
    {builder}
    profiles: [exact_features]
  bert_float32:
    source: {{python: "models.bert:build", kwargs: {{layers: 2}}}}
    inputs:
      input_ids: {{dtype: int64}}
      attention_mask: {{dtype: int64, keyword: true}}
    dims:
      batch: {{at: [input_ids.0, attention_mask.0]}}
      sequence: {{at: [input_ids.1, attention_mask.1]}}
    reference: true
    {plain}
    profiles: [exact_text]
"""
_HALF_PROFILES = """\
version: 1
profiles:
  half_tokens:
    x: {min: [1, 196, 768], opt: [8, 196, 768], max: [32, 196, 768]}
  half_square:
    image: {min: [1, 3, 64, 64], opt: [1, 3, 320, 320], max: [1, 3, 640, 640]}
  half_wide:
    image: {min: [1, 3, 64, 320], opt: [1, 3, 192, 640], max: [1, 3, 320, 640]}
"""

#: ViT-B: as one engine, and with an engine for each of its layers.
_VIT = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}, precision: {precision}}}
profiles:
  {name}_images:
    pixel_values: {{min: [1, 3, {image}, {image}], opt: [8, 3, {image}, {image}], max: [16, 3, {image}, {image}]}}
models:
  {name}:
    source: {{python: "models.vit_b:build", kwargs: {{layers: {layers}, hidden: {hidden}, image: {image}}}}}
    inputs: {{pixel_values: {{}}}}
    dims: {{batch: {{at: [pixel_values.0]}}}}
    profiles: [{name}_images]
{partition}"""
_BY_LAYER = '    partition: {granularity: ["layers.*"]}\n'

#: ResNet-50 in float32 and in float16.
_RESNET = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}, profiles: [images], reference: true}}
profiles:
  images:
    x: {{min: [1, 3, 224, 224], opt: [8, 3, 224, 224], max: [16, 3, 224, 224]}}
models:
  resnet: {{source: {{python: "models.resnet50:build"}}, inputs: {{x: {{}}}}}}
  resnet_half: {{source: {{python: "models.resnet50:build"}}, inputs: {{x: {{}}}}, precision: float16}}
"""
#: ResNet-50 and BERT-base in float32, float16 and int8.
_QUANTIZED = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}, reference: true}}
profiles:
  images:
    x: {{min: [1, 3, 224, 224], opt: [16, 3, 224, 224], max: [32, 3, 224, 224]}}
  texts:
    input_ids: {{min: [1, 128], opt: [16, 128], max: [32, 128]}}
    attention_mask: {{min: [1, 128], opt: [16, 128], max: [32, 128]}}
models:
{models}"""
_QUANTIZED_RESNET = """\
  resnet_{name}:
    source: {{python: "models.resnet50:build"}}
    inputs: {{x: {{}}}}
    profiles: [images]
{rest}"""
_QUANTIZED_BERT = """\
  bert_{name}:
    source: {{python: "models.bert:build", kwargs: {{layers: {layers}, hidden: {hidden}}}}}
    inputs: {{input_ids: {{dtype: int32}}, attention_mask: {{dtype: int32, range: [0, 1]}}}}
    dims: {{batch: {{at: [input_ids.0, attention_mask.0]}}}}
    profiles: [texts]
{rest}"""
_INT8 = """\
    quantize:
      format: int8
      method: {method}
      calibration: {{python: "models.samples:{samples}", kwargs: {{count: {count}, batch: 4}}}}
"""
#: A model whose engine calls a plugin of TensorRT's own library.
_PLUGINS = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}}}
profiles:
  regions:
    pictures: {{shape: [2, 3, 64, 64]}}
    corners: {{min: [1, 4], opt: [32, 4], max: [128, 4]}}
    images: {{min: [1], opt: [32], max: [128]}}
models:
  regions:
    source: {{python: "models.regions:build"}}
    inputs:
      pictures: {{}}
      corners: {{range: [0, 32]}}
      images: {{dtype: int32, range: [0, 1]}}
    dims: {{regions: {{at: [corners.0, images.0]}}}}
    profiles: [regions]
    plugins:
      operators:
        "regions::align":
          plugin: ROIAlign_TRT
          version: "{version}"
          arguments: {{height: output_height, width: output_width, scale: spatial_scale, samples: sampling_ratio}}
          attributes: {{mode: 1, coordinate_transformation_mode: 1}}
"""
#: Decoders with a cache: as state, and as an input and output that grows.
_DECODERS = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}, reference: true}}
profiles:
  prompt:
    tokens: {{min: [1, 2], opt: [1, 16], max: [1, 64]}}
  next:
    tokens: {{min: [1, 1], opt: [1, 1], max: [1, 1]}}
  next_token:
    tokens: {{min: [1, 1], opt: [1, 1], max: [1, 1]}}
    past:
      min: [{layers}, 2, 1, {heads}, 1, 64]
      opt: [{layers}, 2, 1, {heads}, 64, 64]
      max: [{layers}, 2, 1, {heads}, 256, 64]
  token:
    token: {{min: [1, 1], opt: [1, 1], max: [1, 1]}}
models:
  static_decoder:
    source: {{python: "models.decoders:static_decoder", kwargs: {size}}}
    inputs: {{tokens: {{dtype: int64, range: [0, {last}]}}}}
    profiles: [prompt, next]
    state: ["keys_*", "values_*", "length_*"]
  prefill:
    source: {{python: "models.decoders:prefill", kwargs: {size}}}
    inputs: {{tokens: {{dtype: int64, range: [0, {last}]}}}}
    profiles: [prompt]
  growing_decoder:
    source: {{python: "models.decoders:growing_decoder", kwargs: {size}}}
    inputs: {{tokens: {{dtype: int64, range: [0, {last}]}}, past: {{}}}}
    profiles: [next_token]
  token_decoder:
    source: {{python: "models.token_decoder:build", kwargs: {size}}}
    inputs: {{token: {{dtype: int32, range: [0, {last}]}}}}
    profiles: [token]
    state: [length, "layers.*.keys", "layers.*.values"]
"""
#: The kernels of TensorRT for convolutions, for hosts without cuDNN.
BUILT_IN_CONVOLUTIONS = ("edge_mask_convolutions", "jit_convolutions")


@dataclass(frozen=True)
class Hardware:
    """The GPU and the toolchain for which the project is built."""

    sm: int = 90
    toolchain: str = "tensorrt"
    version: str | None = None
    #: The libraries whose kernels TensorRT may use. Empty if the GPU host has neither cuBLAS nor cuDNN, which TensorRT 8.6
    #: uses by default. None for TensorRT's default.
    tactic_sources: tuple[str, ...] | None = None

    def builder(self, *settings: str) -> str:
        """A `builder` mapping of `settings` and the tactic sources, or an empty string if there are neither."""
        if self.tactic_sources is not None:
            settings = (*settings, f"tactic_sources: [{', '.join(self.tactic_sources)}]")
        return f"builder: {{{', '.join(settings)}}}" if settings else ""

    def defaults(self) -> str:
        """The `defaults` of every manifest."""
        return ", ".join(filter(None, ("targets: [gpu]", self.builder())))

    def manifest(self) -> str:
        """The contents of targets.yaml."""
        pin = f', version: "{self.version}"' if self.version else ""
        return f"version: 1\ntargets:\n  gpu: {{sm: {self.sm}, toolchain: {self.toolchain}{pin}}}\n"


def write_examples(folder: Path, hardware: Hardware) -> Path:
    """Write the examples as a project for `hardware`. Four variants are added: two examples in float16, mlp without TF32,
    and BERT in float32."""
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
    write(folder / "manifests" / "half.yaml", _HALF.format(defaults=hardware.defaults()))
    write(
        folder / "manifests" / "exact.yaml",
        _EXACT.format(builder=hardware.builder("tf32: false"), plain=hardware.builder()),
    )
    write(folder / "manifests" / "vision.profiles.yaml", _HALF_PROFILES)
    return folder


def write_vit(folder: Path, hardware: Hardware, *, layers: int = 12, hidden: int = 768, image: int = 224) -> Path:
    """Write ViT-B as one engine (`whole`, `whole_half`) and as one for each layer (`by_layer`, `by_layer_half`)."""
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    write(folder / "manifests" / "models" / "vit_b.py", _VIT_MODEL)
    for suffix in ("", "_half"):
        for name, partition in (("whole", ""), ("by_layer", _BY_LAYER)):
            text = _VIT.format(
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
    """Write ResNet-50 in float32 and float16. Without cuBLAS and cuDNN, TensorRT still uses its own convolutions."""
    if hardware.tactic_sources is not None:
        hardware = replace(hardware, tactic_sources=BUILT_IN_CONVOLUTIONS)
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    write(folder / "manifests" / "models" / "resnet50.py", Path(__file__).with_name("resnet50.py").read_text())
    write(folder / "manifests" / "resnet.yaml", _RESNET.format(defaults=hardware.defaults()))
    return folder


def write_quantized(
    folder: Path, hardware: Hardware, *, layers: int = 12, hidden: int = 768, samples: int = 16
) -> Path:
    """Write ResNet-50 and BERT-base, each in float32, float16, int8, and int8 with float16 for all other layers. They are
    calibrated with `samples` batches of 4."""
    if hardware.tactic_sources is not None:
        hardware = replace(hardware, tactic_sources=BUILT_IN_CONVOLUTIONS)
    models = ""
    for entry, data, method in ((_QUANTIZED_RESNET, "images", "entropy"), (_QUANTIZED_BERT, "texts", "max")):
        int8 = _INT8.format(method=method, samples=data, count=samples)
        half = "    precision: float16\n"
        for name, rest in (("float32", ""), ("float16", half), ("int8", int8), ("int8_float16", half + int8)):
            models += entry.format(name=name, layers=layers, hidden=hidden, rest=rest)
    builder = hardware.builder()
    write(folder / "manifests" / "targets.yaml", hardware.manifest())
    write(folder / "manifests" / "models" / "__init__.py", "")
    for source in ("resnet50.py", "bert.py", "samples.py"):
        write(folder / "manifests" / "models" / source, Path(__file__).with_name(source).read_text())
    text = _QUANTIZED.format(defaults=f"targets: [gpu], {builder}", models=models)
    write(folder / "manifests" / "quantized.yaml", text)
    return folder


def write_decoders(folder: Path, hardware: Hardware, *, layers: int = 8, hidden: int = 512) -> Path:
    """Write decoders of `layers` layers: two of transformers, and one whose tokens are int32. `hidden` is at least 256."""
    size = {"layers": layers, "hidden": hidden}
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    write(folder / "size.json", json.dumps(size))
    for source in (_EXAMPLES / "state" / "decoders.py", Path(__file__).with_name("token_decoder.py")):
        write(folder / "models" / source.name, source.read_text())
    text = _DECODERS.format(
        # Eager PyTorch computes float32 without TF32, and the tokens of both are compared.
        defaults=f"targets: [gpu], {hardware.builder('tf32: false')}",
        size=json.dumps(size),
        layers=layers,
        heads=hidden // 128,
        last=8 * hidden - 1,
    )
    write(folder / "trtbuild.yaml", text)
    return folder


def write_plugins(folder: Path, hardware: Hardware) -> Path:
    """Write a model with TensorRT's plugin ROIAlign_TRT. TensorRT-RTX has version 2 of it, TensorRT 8.6 version 1."""
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "regions.py", Path(__file__).with_name("regions.py").read_text())
    version = "2" if hardware.toolchain == "tensorrt-rtx" else "1"
    write(folder / "trtbuild.yaml", _PLUGINS.format(defaults=hardware.defaults(), version=version))
    return folder
