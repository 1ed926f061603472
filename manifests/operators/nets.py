"""Models that call the operators of operators.py."""

import operators
import torch
from torch import nn


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.neck = nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        y = torch.ops.boxes.halves(self.body(x), x.shape[2] // 2, 0.5)
        z = self.neck(y).relu()
        boxes, rows = operators.positive(self.head(z.mean((2, 3))))
        return z, nn.functional.hardswish(boxes) * 2, rows


class Detector(nn.Module):
    """The boxes of one image after non-maximum suppression, and the class scores of each box."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))

    def forward(self, x):
        features = self.body(x)
        corners = self.boxes(features).flatten(2).transpose(1, 2)[0].sigmoid() * 10
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1)
        kept = boxes[torch.ops.boxes.nms(boxes, self.scores(features).flatten(), 0.3)]
        regions = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
        return kept, self.head(torch.ops.boxes.roi_align(features, regions, 0.5, 3, 3, 2, True))


class Around(nn.Module):
    """Two convolutions with an operator between them. The operator gets a tensor with moved axes."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(12, 4, 1)

    def forward(self, x):
        y = self.operator(self.first(x).permute(0, 3, 1, 2).contiguous())
        return self.second(y).relu() + y.shape[0]


def build_seeded(module):
    torch.manual_seed(0)
    return module().eval()


def boxes():
    return build_seeded(Boxes)


def detector():
    return build_seeded(Detector)


def moved():
    return build_seeded(lambda: Around(torch.ops.boxes.negated))


def on_gpu():
    return build_seeded(lambda: Around(operators.on_gpu))
