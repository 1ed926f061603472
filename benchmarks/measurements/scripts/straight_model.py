"""Build a TensorRT-RTX plan of one module without trtbuild, in one process, as `straight_vit.py` does for ViT.

Usage: ``python straight_model.py OUTPUT_FOLDER NAME INPUTS``, in a folder that has ``models/NAME.py``. INPUTS is JSON: the
name, the dtype and the shape of each input. The shape leaves out the batch, which is 1 to 8. `cold_architectures.py`
compares trtbuild with this script, so do not make the script faster or slower.
"""

import importlib
import json
import sys
from pathlib import Path

import tensorrt_rtx as trt
import torch

sys.path.insert(0, "")


def main(folder: Path, name: str, inputs: list[tuple[str, str, list[int]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx_file, plan_file = folder / f"{name}.onnx", folder / f"{name}.plan"

    model = importlib.import_module(f"models.{name}").build()
    batch = torch.export.Dim("batch", min=1, max=8)
    torch.onnx.export(
        model,
        (),
        str(onnx_file),
        kwargs={key: torch.ones(4, *shape, dtype=getattr(torch, dtype)) for key, dtype, shape in inputs},
        input_names=[key for key, _, _ in inputs],
        dynamic_shapes={key: {0: batch} for key, _, _ in inputs},
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
    for key, _, shape in inputs:
        profile.set_shape(key, *((size, *shape) for size in (1, 4, 8)))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        sys.exit("the build failed")
    plan_file.write_bytes(plan)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
