"""Writes to inputs and outputs do not change a state, even if the state or the outputs are views in PyTorch."""

from __future__ import annotations

import torch

import trtbuild
from tests.conftest import CommandLine

NETS = '''
import torch
from torch import nn

class Recorder(nn.Module):
    """Returns parts of the old and of the new state. The new state is a view of the input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 4))

    def forward(self, x):
        previous = self.last.clone()
        self.last = x[:, :4]
        return previous[:, 1:], self.last[:, :2]

def build():
    return Recorder().eval()
'''

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows: {x: {min: [1, 8], opt: [1, 8], max: [1, 8]}}
models:
  recorder:
    source: {python: "nets:build"}
    inputs: {x: {}}
    profiles: [rows]
    targets: [ada]
    state: [last]
    reference: true
"""


def test_writing_to_inputs_and_outputs_does_not_change_a_state(command_line: CommandLine) -> None:
    (command_line.project / "nets.py").write_text(NETS)
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    command_line("build")
    recorder = trtbuild.load(command_line.project / "dist" / "recorder", device="cpu").module()
    x = torch.arange(8.0).reshape(1, 8)
    old_state, new_state = recorder(x)
    assert new_state.tolist() == [[0.0, 1.0]]
    for tensor in (x, old_state, new_state):
        tensor.fill_(99.0)
    assert recorder(torch.ones(1, 8))[0].tolist() == [[1.0, 2.0, 3.0]]
    assert recorder.session()(torch.ones(1, 8))[0].tolist() == [[0.0, 0.0, 0.0]]
