"""Models of the library transformers can be traced without a change, and keep their interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trtbuild.core.model.spec import Input, NamedDim


def test_a_vision_transformer_keeps_its_outputs_and_module_paths(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=16
    )
    shapes = [{"pixel_values": (1, 3, 32, 32)}, {"pixel_values": ((1, 3, 32, 32), (4, 3, 32, 32), (8, 3, 32, 32))}]
    traced_model = traced(ViTModel(config).eval(), job_of(shapes))
    outputs = {entry["name"]: entry["shape"] for entry in traced_model.interface["outputs"]}
    assert outputs == {"last_hidden_state": [["sym", 0], 5, 32], "pooler_output": [["sym", 0], 32]}
    assert traced_model.interface["output_tree"]["type"] == "transformers.modeling_outputs:BaseModelOutputWithPooling"
    assert "symbol 0 in 1..8\n" in traced_model.graph
    assert any(path.startswith("layers.1.") or ".layer.1." in path for path, *_ in traced_model.modules)


def test_a_text_encoder_keeps_its_outputs_and_its_keyword_mask(
    traced: Callable[..., Any], job_of: Callable[..., Any]
) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=64)
    inputs = (Input("input_ids", "int64"), Input("attention_mask", "int64", keyword=True))
    names = [entry.name for entry in inputs]
    dims = [NamedDim(name, tuple((entry, axis) for entry in names)) for axis, name in enumerate(("batch", "sequence"))]
    job = job_of(dict.fromkeys(names, ((1, 4), (4, 16), (8, 32))), inputs=inputs, dims=dims)
    traced_model = traced(BertModel(config).eval(), job)
    outputs = {entry["name"]: entry["shape"] for entry in traced_model.interface["outputs"]}
    assert outputs == {"last_hidden_state": [["sym", 0], ["sym", 1], 32], "pooler_output": [["sym", 0], 32]}
    assert [(entry["dtype"], entry["keyword"]) for entry in traced_model.interface["inputs"]] == [
        ("int64", False),
        ("int64", True),
    ]
    # the weights include position_ids, a buffer that weights files do not contain
    assert any(value.dtype is torch.int64 for _, value in traced_model.weights)
