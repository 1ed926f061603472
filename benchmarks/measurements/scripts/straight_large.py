"""Export or compile the large model without trtbuild, in one process, with the documented calls.

Usage: ``python straight_large.py export|compile FOLDER LAYERS WIDTH``, with ``models/wide.py`` in the working directory.
Prints the peak of the process's resident memory in bytes.

`large.py` compares the memory of trtbuild with that of this script, so do not change what the script needs.
``export`` follows PyTorch's tutorial for the exporter (torch.onnx.export with dynamo=True, weights as external data).
``compile`` parses the ONNX file. It writes the plan in pieces (IBuilder::buildSerializedNetworkToStream), so the plan is
never in memory as a whole.
"""

import sys
from pathlib import Path
from typing import BinaryIO


def export(folder: Path, layers: int, width: int) -> None:
    import torch

    sys.path.insert(0, "")
    from models.wide import build

    torch.onnx.export(
        build(layers, width),
        (torch.randn(2, width),),
        str(folder / "wide.onnx"),
        input_names=["x"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=4)}},
        dynamo=True,
        external_data=True,
    )


def compile_plan(folder: Path, width: int) -> None:
    import tensorrt_rtx as trt

    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self, file: BinaryIO) -> None:
            trt.IStreamWriter.__init__(self)
            self.file = file

        def write(self, data: bytes) -> int:
            return self.file.write(data)

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(folder / "wide.onnx")):
        sys.exit("\n".join(str(parser.get_error(number)) for number in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, width), (2, width), (4, width))
    config.add_optimization_profile(profile)
    with open(folder / "wide.plan", "wb") as file:
        if not builder.build_serialized_network_to_stream(network, config, Writer(file)):
            sys.exit("the build failed")


def peak_bytes() -> int:
    """Return the peak of the resident memory of this process (proc_pid_status(5), VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    part, folder_text, layers_text, width_text = sys.argv[1:]
    if part == "export":
        export(Path(folder_text), int(layers_text), int(width_text))
    else:
        compile_plan(Path(folder_text), int(width_text))
    print(peak_bytes())
