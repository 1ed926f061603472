"""Small engines: their computation in NumPy, their inputs and profiles, and their construction with TensorRT's network API.

The fake runs `compute`. benchmarks/gpu_record.py builds the engine of the real library with `network`. The names of inputs
and outputs are ``i0…`` and ``o0…``, as in converted models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Range = tuple[Shape, Shape, Shape]


@dataclass(frozen=True)
class Sample:
    """A small engine. Each input and output is (torch dtype, shape), with -1 for a dynamic size. `profiles` has the min,
    opt and max shape of each input."""

    inputs: tuple[tuple[str, Shape], ...]
    outputs: tuple[tuple[str, Shape], ...]
    profiles: tuple[tuple[Range, ...], ...]
    compute: Callable[..., list[Any]]
    network: Callable[[Any, Any, list[Any]], list[Any]]
    #: Whether contexts may share a profile (PreviewFeature.PROFILE_SHARING_0806; always from TensorRT 9 on).
    shared: bool = True
    #: Activation memory in bytes, from recording.json.
    memory_bytes: int = 0
    #: Inputs that TensorRT reads in host memory. Their values are shapes, and the profiles limit these values.
    on_host: tuple[int, ...] = ()
    #: The order of the tensors in the engine, if it differs from the order in the network.
    order: tuple[str, ...] = ()

    def shapes(self, shapes: list[Shape]) -> list[Shape]:
        """Return the output shapes, with -1 for sizes that depend on data. Raises ValueError for incompatible `shapes`."""
        zeros = [np.zeros(shape, _NUMPY[dtype]) for shape, (dtype, _) in zip(shapes, self.inputs, strict=True)]
        computed = [array.shape for array in self.compute(*zeros)]
        if self.compute is nonzero:
            return [shape for _, shape in self.outputs]
        return computed


_NUMPY = {"float32": np.float32, "float16": np.float16, "int32": np.int32, "bool": np.bool_, "uint8": np.uint8}
WIDTH = 256


def half_of_identity() -> Any:
    """Return half of the identity matrix, the weight of the sample `wide`. So the results of this sample are exact."""
    return (np.eye(WIDTH) * 0.5).astype(np.float32)


def nonzero(x: Any) -> list[Any]:
    return [np.stack(np.nonzero(x)).astype(np.int32)]


def _constant(network: Any, value: Any) -> Any:
    value = np.ascontiguousarray(value)
    _WEIGHTS_IN_USE.append(value)
    return network.add_constant(value.shape, value).get_output(0)


#: TensorRT has pointers to these weights until it has built the engine.
_WEIGHTS_IN_USE: list[Any] = []


def _affine(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    product = trt.ElementWiseOperation.PROD
    total = trt.ElementWiseOperation.SUM
    doubled = network.add_elementwise(inputs[0], _constant(network, np.full((1, 4), 2, np.float32)), product)
    one = _constant(network, np.full((1, 4), 1, np.float32))
    return [network.add_elementwise(doubled.get_output(0), one, total).get_output(0)]


def _pair(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    total = network.add_elementwise(inputs[0], inputs[1], trt.ElementWiseOperation.SUM)
    relu = network.add_activation(inputs[0], trt.ActivationType.RELU)
    return [total.get_output(0), relu.get_output(0)]


def _twice(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    return [network.add_elementwise(inputs[0], inputs[0], trt.ElementWiseOperation.SUM).get_output(0)]


def _nonzero(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    return [network.add_non_zero(inputs[0]).get_output(0)]


def _wide(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    value, none = inputs[0], trt.MatrixOperation.NONE
    for _ in range(3):
        weight = _constant(network, half_of_identity())
        value = network.add_matrix_multiply(value, none, weight, none).get_output(0)
        value = network.add_activation(value, trt.ActivationType.RELU).get_output(0)
    return [value]


def _reshaped(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    shuffle = network.add_shuffle(inputs[0])
    shuffle.set_input(1, inputs[1])
    return [shuffle.get_output(0)]


def _kinds(trt: Any, network: Any, inputs: list[Any]) -> list[Any]:
    zero = _constant(network, np.zeros((1,), np.int32))
    greater = network.add_elementwise(inputs[0], zero, trt.ElementWiseOperation.GREATER).get_output(0)
    return [*_twice(trt, network, inputs), greater]


def _ranges(*shapes: Shape) -> Range:
    low, middle, high = shapes
    return low, middle, high


def _row(low: int, middle: int, high: int, width: int = 4) -> tuple[Range, ...]:
    return (_ranges((low, width), (middle, width), (high, width)),)


def _affine_of(x: Any) -> list[Any]:
    return [x * np.float32(2) + np.float32(1)]


SAMPLES: dict[str, Sample] = {
    "affine": Sample(
        (("float32", (-1, 4)),), (("float32", (-1, 4)),), (_row(1, 4, 8), _row(8, 16, 32)), _affine_of, _affine
    ),
    "unshared": Sample(
        (("float32", (-1, 4)),),
        (("float32", (-1, 4)),),
        (_row(1, 4, 8), _row(8, 16, 32)),
        _affine_of,
        _affine,
        shared=False,
    ),
    "empty": Sample((("float32", (-1, 4)),), (("float32", (-1, 4)),), (_row(0, 4, 8),), _affine_of, _affine),
    "pair": Sample(
        (("float32", (-1, -1)), ("float32", (-1, -1))),
        (("float32", (-1, -1)), ("float32", (-1, -1))),
        ((_ranges((1, 1), (2, 3), (8, 8)),) * 2,),
        lambda a, b: [a + b, np.maximum(a, 0)],
        _pair,
        memory_bytes=512,
    ),
    "half": Sample(
        (("float16", (2, 3)),),
        (("float16", (2, 3)),),
        ((_ranges((2, 3), (2, 3), (2, 3)),),),
        lambda x: [x + x],
        _twice,
        memory_bytes=1536,
    ),
    "scalar": Sample(
        (("float32", ()),), (("float32", ()),), ((_ranges((), (), ()),),), lambda x: [x + x], _twice, memory_bytes=512
    ),
    "unshared_static": Sample(
        (("float32", (2, 3)),),
        (("float32", (2, 3)),),
        ((_ranges((2, 3), (2, 3), (2, 3)),),),
        lambda x: [x + x],
        _twice,
        shared=False,
        memory_bytes=512,
    ),
    "kinds": Sample(
        (("int32", (-1,)),),
        (("int32", (-1,)), ("bool", (-1,))),
        ((_ranges((1,), (4,), (16,)),),),
        lambda x: [x + x, x > 0],
        _kinds,
        memory_bytes=512,
        order=("i0", "o1", "o0"),
    ),
    "nonzero": Sample(
        (("float32", (-1,)),),
        (("int32", (1, -1)),),
        ((_ranges((1,), (4,), (16,)),),),
        nonzero,
        _nonzero,
        memory_bytes=1536,
    ),
    "shaped": Sample(
        (("float32", (-1,)), ("int32", (2,))),
        (("float32", (-1, -1)),),
        ((_ranges((1,), (4,), (16,)), _ranges((1, 1), (2, 2), (4, 4))),),
        lambda x, shape: [x.reshape(shape)],
        _reshaped,
        on_host=(1,),
    ),
    "wide": Sample(
        (("float32", (-1, WIDTH)),),
        (("float32", (-1, WIDTH)),),
        (_row(1, 8, 64, WIDTH), _row(64, 128, 512, WIDTH)),
        lambda x: [np.maximum(x * np.float32(0.125), 0)],
        _wide,
        memory_bytes=(1 << 20) + 512,
    ),
}


def numpy_type(dtype: str) -> Any:
    """Return the NumPy type for torch's name of an element type."""
    return _NUMPY[dtype]
