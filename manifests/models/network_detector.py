"""The detector of detector.py, defined with TensorRT's API. Height and width are dynamic.

Batch norms are folded into the convolutions before them.
"""

from models.detector import build


def define(network, trt, classes: int) -> None:  # type: ignore[no-untyped-def]
    model = build(classes)
    image = network.add_input("image", trt.float32, (1, 3, -1, -1))

    def convolution(x, layer, norm=None, name=""):  # type: ignore[no-untyped-def]
        weight, bias = layer.weight.detach(), layer.bias.detach()
        if norm is not None:
            scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
            weight = weight * scale[:, None, None, None]
            bias = (bias - norm.running_mean) * scale + norm.bias.detach()
        added = network.add_convolution_nd(x, layer.out_channels, layer.kernel_size, weight.numpy(), bias.numpy())
        added.stride_nd, added.padding_nd, added.name = layer.stride, layer.padding, name
        return added.get_output(0)

    def block(x, layers, name):  # type: ignore[no-untyped-def]
        x = convolution(x, layers[0], layers[1], name)
        gate = network.add_activation(x, trt.ActivationType.SIGMOID).get_output(0)
        return network.add_elementwise(x, gate, trt.ElementWiseOperation.PROD).get_output(0)

    fine = image
    for number, layers in enumerate(model.stem):
        fine = block(fine, layers, f"stem.{number}")
    coarse = block(fine, model.deep, "deep")
    up = network.add_resize(convolution(coarse, model.lateral, name="lateral"))
    up.resize_mode, up.scales = trt.InterpolationMode.NEAREST, [1, 1, 2, 2]
    combined = network.add_elementwise(fine, up.get_output(0), trt.ElementWiseOperation.SUM).get_output(0)
    for name, x, head in zip(("fine", "coarse"), (combined, coarse), model.heads, strict=True):
        out = convolution(x, head, name=f"heads.{name}")
        out.name = name
        network.mark_output(out)
