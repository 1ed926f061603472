"""Translate programs to ONNX with PyTorch's exporter.

Only this file uses the private modules of the exporter (``torch.onnx._internal``). `torch.onnx.export` cannot be used,
because it always decomposes (10 s for ViT-B), and folds weights while it optimizes.
``tests/stages/program/test_translations.py`` tests each private name.

Rules
1. A translation is written in one of `OPSETS`. Only trtbuild's quantizers need newer opsets (`quantized_onnx`). ONNX's
   version converter converts models to other opsets. All `OPSETS` translate the same operators, so one table of
   decompositions fits all toolchains.
2. A registry has the translations for one opset. trtbuild's translations replace the exporter's for PyTorch's quantizers
   (`quantized`), ``floor_divide`` and ``remainder`` (`integer_translations`). Those of trtbuild's quantizers are added
   (`quantized_onnx`). Loading a registry takes 1 to 2 s, so the first use loads it, not the import of this module.
3. Logs and warnings of the exporter are suppressed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.experimental._config as fx_config

from trtbuild.stages.program import integer_translations, quantized_onnx
from trtbuild.stages.program.custom_operators import is_custom
from trtbuild.stages.program.quantized import register_operators, register_translations

if TYPE_CHECKING:
    import onnx_ir
    from torch.export import ExportedProgram

#: The opsets that translations are written in. 18 is the exporter's own (`_constants.TORCHLIB_OPSET`); 20 has Gelu as one
#: operator, and is the exporter's default since torch 2.13.
OPSETS = (18, 20)


class TranslationFailed(Exception):
    """A node has no translation, or its translation failed. `node` is the node's name, if it is known."""

    def __init__(self, text: str, node: str | None) -> None:
        super().__init__(text)
        self.node = node


@functools.lru_cache(maxsize=len(OPSETS))
def _registry(opset: int) -> Any:  # `opset` has no default: a call without it would load the registry again
    from torch.onnx._internal.exporter import _registration

    register_operators()  # the registry has translations for the operators that are defined when it is loaded
    with silence_exporter():
        registry = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
        register_translations(registry)
        integer_translations.register_translations(registry)
        quantized_onnx.register_translations(registry)
        return registry


@functools.lru_cache(maxsize=1)
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of the operators without a translation, for `run_decompositions`. The exceptions are the sets
    `_ALWAYS_DECOMPOSED` and `_NEVER_DECOMPOSED`.

    Operators with a translation (linear, layer_norm, gelu) stay, which gives a better graph in a fraction of the time.
    """
    from torch.onnx._internal.exporter import _decomp

    translated = set(_decomp.get_onnx_implemented_overloads(_registry(OPSETS[-1]))) - _ALWAYS_DECOMPOSED
    table = _decomp.create_onnx_friendly_decomposition_table(translated)
    return {operator: function for operator, function in table.items() if operator not in _NEVER_DECOMPOSED}


def has_translation(node: torch.fx.Node) -> bool:
    """Whether there is a translation for a call_function node. The translation may still fail for the node's arguments.
    False for operators from outside PyTorch and for those of torch.onnx.ops."""
    from torch.onnx._internal.exporter import _dispatching

    if is_custom(node.target):
        return False
    if node.target is operator.getitem or node.target in _ASSERTIONS:
        return True
    return _dispatching.dispatch(node, _registry(OPSETS[-1]))[0] is not None


def promote_types(module: torch.fx.GraphModule) -> None:
    """Insert casts for type promotion, because ONNX has no implicit promotion. Works in place, also in nested graphs.

    A cast has the ``meta`` of the node for which it was inserted, except ``val``. Half precision operators that compute in
    float32 (torch's "op math") become casts around a float32 operator.
    """
    from torch.onnx._internal.exporter import _fx_passes

    with silence_exporter(), fx_config.patch(backed_size_oblivious=True):
        _fx_passes.insert_type_promotion_nodes(module)


def remove_assertions(module: torch.fx.GraphModule) -> None:
    """Remove run-time assertions, and scalars that only assertions used, in place."""
    for graph_module in module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in reversed(graph_module.graph.nodes):
                if node.op == "call_function" and (node.target in _ASSERTIONS or _is_dead_scalar(node)):
                    graph_module.graph.erase_node(node)
            graph_module.recompile()


def translate(exported: ExportedProgram, opset: int) -> onnx_ir.Model:
    """Translate a program with the exporter, without optimizing. The caller has applied `promote_types` and
    `remove_assertions`.

    All inputs of the program, weights included, become graph inputs. Each quantized weight has its ONNX type
    (`quantized_onnx`). The opset is the largest of `OPSETS` that is not above `opset`. If all are above, it is the
    smallest. ``node.meta["node"]`` of each ONNX node is the fx node that it came from. Raises TranslationFailed.
    """
    from torch.onnx._internal.exporter import _core, _errors

    registry = _registry(max((known for known in OPSETS if known <= opset), default=OPSETS[0]))
    with silence_exporter(), fx_config.patch(backed_size_oblivious=True):
        try:
            program = _core._exported_program_to_onnx_program(exported, registry=registry, lower="at_conversion")
        except (_errors.ConversionError, _errors.DispatchError) as error:
            raise _translation_failure(error, exported) from error
    quantized_onnx.set_stored_types(program.model)
    return program.model


@contextlib.contextmanager
def silence_exporter() -> Iterator[None]:
    """Suppress output, logs and warnings inside the block. Errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _translation_failure(error: BaseException, exported: ExportedProgram) -> TranslationFailed:
    # The exporter names the node only in its message: "Error when translating node %name : [...] = ...".
    message = str(error)
    name = message.partition("%")[2].split(" ")[0].rstrip(":") if "translating node %" in message else None
    names = {node.name for node in exported.graph.nodes}
    while error.__cause__ is not None:
        error = error.__cause__
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return TranslationFailed(f"{type(error).__name__}: {reason[0]}", name if name in names else None)


def _is_dead_scalar(node: torch.fx.Node) -> bool:
    return not node.users and isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | torch.SymFloat)


_aten = torch.ops.aten
#: Operators that are not decomposed, although they have no translation (torch 2.13). The decompositions of signbit and
#: copysign declare the sign bit, a bool, as a float. The lower step replaces the interpolations (``_upsample``). The
#: decompositions of the other operators check for a singular matrix with an operator that has a side effect, which a
#: functional program cannot have.
_NEVER_DECOMPOSED = frozenset(
    {
        *(_aten.signbit.default, _aten.signbit.out),
        *(_aten.copysign.Tensor, _aten.copysign.Scalar, _aten.copysign.out),
        *(_aten._upsample_nearest_exact1d.default, _aten._upsample_nearest_exact1d.vec),
        *(_aten._upsample_nearest_exact2d.default, _aten._upsample_nearest_exact2d.vec),
        *(_aten._upsample_nearest_exact3d.default, _aten._upsample_nearest_exact3d.vec),
        *(_aten.linalg_inv.default, _aten.inverse.default, _aten.linalg_cholesky.default),
        *(_aten.linalg_solve.default, _aten.linalg_lu_factor.default, _aten.linalg_ldl_factor.default),
        *(_aten.linalg_tensorinv.default, _aten.linalg_tensorsolve.default),
    }
)
#: Operators that are decomposed although they have a translation (torch 2.13). With fake tensors, torch gives nll_loss a
#: scalar result for every reduction. The translations of logaddexp and logaddexp2 add exponentials, which overflow. The
#: translation of log_sigmoid is the logarithm of a sigmoid, which is 0 for very negative numbers.
_ALWAYS_DECOMPOSED = frozenset(
    {_aten.nll_loss.default, _aten.logaddexp.default, _aten.logaddexp2.default, _aten.log_sigmoid.default}
)

_ASSERTIONS = frozenset(
    {
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_async.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
    }
)
