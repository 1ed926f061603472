"""Exports examples of models without trtbuild: digits.onnx, with a file of its weights, and words.ts.

Both are in manifests/programs. Run this file with python.
"""

import io
import zipfile
from pathlib import Path

import onnx
import torch
from torch import nn
from torch.export import Dim

PROGRAMS = Path(__file__).parent / "programs"


class Digits(nn.Module):
    """Ten class probabilities for each image of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.classes = nn.Linear(16 * 7 * 7, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classes(self.features(image).flatten(1)).softmax(-1)


class Words(nn.Module):
    """The class scores of each sentence, and the attention weight of each word. `ids` has two dynamic dims."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.weigh = nn.Linear(16, 1)
        self.classes = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.embed(ids)
        weights = self.weigh(words).softmax(1)
        return self.classes((words * weights).sum(1)), weights.squeeze(-1)


def main() -> None:
    PROGRAMS.mkdir(exist_ok=True)
    torch.manual_seed(0)
    torch.onnx.export(
        Digits().eval(),
        (torch.randn(2, 1, 28, 28),),
        PROGRAMS / "digits.onnx",
        input_names=["image"],
        output_names=["probabilities"],
        dynamic_shapes=({0: Dim("batch", min=1, max=64)},),
        external_data=True,
        dynamo=True,
    )
    model = onnx.load(PROGRAMS / "digits.onnx", load_external_data=False)
    for node in model.graph.node:
        node.ClearField("metadata_props")  # stack traces, which contain paths of this machine
    onnx.save(model, PROGRAMS / "digits.onnx")
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(Words().eval()), script)
    with (
        zipfile.ZipFile(script) as script_file,
        zipfile.ZipFile(PROGRAMS / "words.ts", "w", zipfile.ZIP_STORED) as stripped,
    ):
        for entry in script_file.infolist():
            if not entry.filename.endswith(".debug_pkl"):  # a .debug_pkl file contains paths of this machine
                stripped.writestr(entry, script_file.read(entry))


if __name__ == "__main__":
    main()
