"""Segmentation, optical flow and detection models of torchvision."""

from __future__ import annotations

import torch
from torch import nn
from torchvision import ops
from torchvision.models import optical_flow, resnet, segmentation
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.image_list import ImageList
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from .sizes import by_size, is_published_size, prepare_module


def deeplab_v3() -> nn.Module:
    """DeepLabV3 on ResNet-50."""
    torch.manual_seed(0)
    if is_published_size():
        return prepare_module(segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None))
    network = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True])
    features = IntermediateLayerGetter(network, return_layers={"layer4": "out"})
    head = nn.Sequential(segmentation.deeplabv3.ASPP(2048, [12, 24, 36], 32), nn.Conv2d(32, 21, 1))
    return prepare_module(segmentation.DeepLabV3(features, head))


class Flow(nn.Module):  # type: ignore[misc]
    """RAFT with a fixed number of updates. The output is the flow after the last update."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.raft = optical_flow.raft_small(weights=None)
        self.updates = updates

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        flow: torch.Tensor = self.raft(first, second, num_flow_updates=self.updates)[-1]
        return flow


def raft() -> nn.Module:
    """RAFT-small with 12 updates."""
    torch.manual_seed(0)
    return prepare_module(Flow(by_size(12, 2)))


class Boxes(nn.Module):  # type: ignore[misc]
    """RetinaNet without non-maximum suppression: the decoded boxes and the scores of all anchors."""

    def __init__(self, detector: RetinaNet) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = list(self.detector.backbone(image).values())
        outputs = self.detector.head(features)
        # All images have the same anchors. A list of the anchors of each image would make the batch size static.
        (anchors,) = self.detector.anchor_generator(
            ImageList(image[:1], [(image.shape[-2], image.shape[-1])]), features
        )
        codes = outputs["bbox_regression"]
        batch = image.shape[0]
        boxes = self.detector.box_coder.decode_single(codes.flatten(0, 1), anchors.repeat(batch, 1))
        return boxes.reshape(batch, -1, 4), outputs["cls_logits"].sigmoid()


class Regions(Boxes):
    """RetinaNet with non-maximum suppression, for one image: the remaining boxes, and the features of each box."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = super().forward(image)
        best, places = scores[0].amax(1).topk(200)
        kept = boxes[0, places]
        kept = kept[ops.nms(kept, best, 0.5)]
        # Random weights give neighbouring pixels very different features, so a small error of a corner would change the
        # result. Therefore, the regions begin and end at whole pixels.
        regions = torch.cat([torch.zeros_like(kept[:, :1]), kept.floor()], 1)
        (features, *_) = self.detector.backbone(image).values()
        return kept, ops.roi_align(features, regions, (7, 7), 1 / 8, 2, True).amax((2, 3))


def retinanet() -> nn.Module:
    """RetinaNet on ResNet-50 for 91 classes."""
    return prepare_module(Boxes(_retinanet()))


def retinanet_regions() -> nn.Module:
    """RetinaNet as in `retinanet`, with torchvision's nms and roi_align.

    The last layer of the classification head gets larger weights. With torchvision's initial weights, all boxes would have
    nearly the same score, so that rounding would decide their order.
    """
    detector = _retinanet()
    nn.init.normal_(detector.head.classification_head.cls_logits.weight, std=0.5)
    return prepare_module(Regions(detector))


def _retinanet() -> RetinaNet:
    torch.manual_seed(0)
    name, classes = by_size(("resnet50", 91), ("resnet18", 4))
    backbone = resnet_fpn_backbone(
        backbone_name=name,
        weights=None,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    return RetinaNet(backbone, classes)
