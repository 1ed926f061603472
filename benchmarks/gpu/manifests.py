"""The manifests of the projects, as templates for `str.format`. `benchmarks.gpu.project` formats and writes them."""

from __future__ import annotations

#: Two of the examples, in float16.
HALF_EXAMPLES = """\
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
#: An example without TF32, to measure the error of float32 alone. Also BERT in float32.
FLOAT32_EXAMPLES = """\
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
    {builder_without_tf32}
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
    {builder}
    profiles: [exact_text]
"""
#: The file ``vision.profiles.yaml``, which `HALF_EXAMPLES` includes. This text is not a template.
HALF_PROFILES = """\
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
VIT = """\
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
#: The value of ``{partition}`` in `VIT` that makes an engine for each layer. This text is not a template.
BY_LAYER = '    partition: {granularity: ["layers.*"]}\n'

#: ResNet-50 in float32 and in float16.
RESNET = """\
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
#: ResNet-50 and BERT-base in float32, float16, int8, and int8 with float16.
#: ``{models}`` stands for entries of the next two templates. In these, ``{rest}`` stands for the precision and `INT8`.
QUANTIZED = """\
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
QUANTIZED_RESNET = """\
  resnet_{name}:
    source: {{python: "models.resnet50:build"}}
    inputs: {{x: {{}}}}
    profiles: [images]
{rest}"""
QUANTIZED_BERT = """\
  bert_{name}:
    source: {{python: "models.bert:build", kwargs: {{layers: {layers}, hidden: {hidden}}}}}
    inputs: {{input_ids: {{dtype: int32}}, attention_mask: {{dtype: int32, range: [0, 1]}}}}
    dims: {{batch: {{at: [input_ids.0, attention_mask.0]}}}}
    profiles: [texts]
{rest}"""
INT8 = """\
    quantize:
      format: int8
      method: {method}
      calibration: {{python: "models.samples:{samples}", kwargs: {{count: {count}, batch: 4}}}}
"""
#: A model whose engine calls a plugin of TensorRT's own library.
PLUGINS = """\
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
#: Decoders whose cache of keys and values is state, or an input and output that grows.
DECODERS = """\
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
