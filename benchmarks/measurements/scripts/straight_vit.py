"""Build a TensorRT-RTX plan of ViT-B without trtbuild, in one process, as a good engineer would with the documented calls.

Usage: ``python straight_vit.py OUTPUT_FOLDER [LAYERS HIDDEN IMAGE]``, in a folder that has ``models/vit.py``.

`cold_build.py` compares trtbuild with this script, so do not make the script faster or slower. It follows PyTorch's
tutorial for the exporter (torch.onnx.export with dynamo=True, named dynamic shapes, weights as external data) and NVIDIA's
sample for its parser (parse_from_file, an optimization profile, build_serialized_network). Except for the SM, it uses the
builder's default settings.
"""

import sys
from pathlib import Path

import tensorrt_rtx as trt
import torch

sys.path.insert(0, "")  # models/ is in the current directory, not beside this script
from models.vit import build


def main(folder: Path, layers: int = 12, hidden: int = 768, image: int = 224) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx_file, plan_file = folder / "vit.onnx", folder / "vit.plan"

    model = build(layers, hidden, image)
    example = torch.randn(4, 3, image, image)
    batch = torch.export.Dim("batch", min=1, max=8)
    torch.onnx.export(
        model,
        (example,),
        str(onnx_file),
        input_names=["pixel_values"],
        dynamic_shapes={"pixel_values": {0: batch}},
        dynamo=True,
        external_data=True,
    )

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx_file)):
        sys.exit("\n".join(str(parser.get_error(number)) for number in range(parser.num_errors)))

    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    profile.set_shape("pixel_values", (1, 3, image, image), (4, 3, image, image), (8, 3, image, image))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        sys.exit("the build failed")
    plan_file.write_bytes(plan)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(size) for size in sys.argv[2:]))
