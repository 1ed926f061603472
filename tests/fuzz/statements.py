"""The statements from which `compositions.py` makes random modules.

Each function in `STATEMENTS` returns the text of an expression. In these functions, `p` is the chooser, `v` and `w` are
existing values that it has chosen, and `s` are sizes as text.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from tests.fuzz.choosing import Attention, Block, Chooser

Statement = Callable[[Chooser], str]


def _list(*items: str) -> str:
    return f"[{', '.join(items)}]"


_UNARY = (
    "relu", "sigmoid", "tanh", "exp", "abs", "floor", "round", "sign", "square", "erf", "sin", "neg", "ceil", "isnan",
)  # fmt: skip


def _elementwise(p: Chooser) -> str:
    return f"{p.float_value()}.{p.pick(*_UNARY)}()"


def _binary(p: Chooser) -> str:
    v = p.value()
    w = p.like(v) if p.rng.random() < 0.5 else p.value(v.kind)
    if v.kind == "bool":
        return f"{v} {p.pick('&', '|', '^')} {w}"
    return p.pick(f"{v} + {w}", f"{v} - {w}", f"{v} * {w}", f"torch.maximum({v}, {w})", f"{v} > {w}", f"{v} == {w}")


#: Numbers for which rewrites of graphs have special cases, and numbers close to them.
_NUMBERS = ["0", "1", "2", "-1", "0.5", "1e-9", "1e-6", "1.000001", "0.9999", "3.7", "255", "65536"]


def _scalar(p: Chooser) -> str:
    v = p.value()
    if v.kind == "float" and p.rng.random() < 0.5:
        number = p.pick(*_NUMBERS)
        return p.pick(
            f"{v} + {number}", f"{v} * {number}", f"{v} / ({v}.abs() + 1e-9)", f"{v}.clamp(min={number})", f"{v} ** 2"
        )
    return p.pick(
        f"{v} * 2", f"{v} + 1", f"1 - {v}.float()", f"{v}.float() / 3", f"{v} > 0", f"{v}.clamp(0, 1)", f"{v} // 2",
        f"{v} % 3",
    )  # fmt: skip


def _cast(p: Chooser) -> str:
    return f"{p.value()}.{p.pick('half', 'bfloat16', 'bool', 'long', 'int', 'double', 'float')}()"


def _reduce(p: Chooser) -> str:
    v = p.float_value(1)
    name = p.pick("sum", "mean", "amax", "amin", "var", "std", "prod", "norm", "logsumexp")
    keep = f", keepdim={p.pick(True, False)}"
    if name in ("var", "std"):
        return f"{v}.{name}({p.axis(v)}, unbiased={p.pick(True, False)}{keep})"
    if name in ("prod", "norm"):
        return f"{v}.{name}({'dim=' if name == 'norm' else ''}{p.axis(v)}{keep})"
    return f"{v}.{name}({p.pick(p.axis(v), p.axes(v))}{keep})"


def _count(p: Chooser) -> str:
    v = p.value(min_rank=1)
    return p.pick(
        f"{v}.bool().any({p.axis(v)})",
        f"{v}.bool().all({p.axis(v)})",
        f"{v}.sum({p.axis(v)})",
        f"{v}.bool().sum()",
        f"{v}.bool().any()",
    )


def _choose(p: Chooser) -> str:
    v = p.float_value(1)
    axis = p.axis(v)
    return p.pick(
        f"{v}.argmax({axis})", f"{v}.topk(1, {axis})[{p.pick(0, 1)}]", f"{v}.sort({axis})[0]",
        f"{v}.max({axis})[{p.pick(0, 1)}]", f"{v}.cumsum({axis})", f"{v}.argsort({axis})",
        f"{v}.topk({p.pick(1, 2, f'{v}.shape[{axis}]')}, {axis})[0]",
    )  # fmt: skip


def _softmax(p: Chooser) -> str:
    v = p.float_value(1)
    return f"{v}.{p.pick('softmax', 'log_softmax')}({p.axis(v)})"


def _flatten(p: Chooser) -> str:
    v = p.value(min_rank=1)
    s = p.sizes(v)
    texts = [f"{v}.reshape(-1)", f"{v}.flatten({p.number(0, v.rank - 1)})", f"{v}.reshape({s[0]}, -1)"]
    if v.rank >= 2:
        texts += [f"{v}.reshape({s[0]} * {s[1]}, *{v}.shape[2:])", f"{v}.flatten(0, 1)", f"{v}.reshape(-1, {s[-1]})"]
    return p.pick(*texts)


def _split_axis(p: Chooser) -> str:
    v = p.value(min_rank=1, max_rank=4)
    axis = p.axis(v) % v.rank
    n = p.pick(1, 2, 4)
    s = p.sizes(v)
    new = p.pick(
        [str(n), f"{s[axis]} // {n}"], [f"{s[axis]} // {n}", str(n)], [str(n), "-1"], ["-1", str(n)], ["1", s[axis]]
    )
    return f"{v}.{p.pick('reshape', 'view')}({', '.join([*s[:axis], *new, *s[axis + 1 :]])})"


def _squeeze(p: Chooser) -> str:
    v = p.value(min_rank=1)
    return p.pick(f"{v}.squeeze({p.axis(v)})", f"{v}.squeeze()", f"{v}.unsqueeze({p.number(0, v.rank)})")


def _transpose(p: Chooser) -> str:
    v = p.value(min_rank=2)
    return p.pick(f"{v}.transpose({p.axis(v)}, {p.axis(v)})", f"{v}.permute({p.order(v)})", f"{v}.mT")


def _slice(p: Chooser) -> str:
    v = p.value(min_rank=1)
    axis = p.axis(v) % v.rank
    last = f"{v}.shape[{axis}]"
    some = ["1:", ":-1", "::2", ":1", "0", "-1", "-1:", ":2", "-2:", ":0", "5:", "None"]
    text = p.pick(*some, f":{last} // 2", f"{last} // 2:", f"{last} - 1")
    return f"{v}[{', '.join([':'] * axis + [text])}]"


def _narrow(p: Chooser) -> str:
    v = p.value(min_rank=1)
    axis = p.axis(v)
    return p.pick(
        f"{v}.select({axis}, {p.pick(0, -1)})",
        f"{v}.narrow({axis}, 0, {p.pick('1', f'{v}.shape[{axis}] - 1')})",
        f"{v}.unbind({axis})[0]",
    )


def _pieces(p: Chooser) -> str:
    v = p.value(min_rank=1)
    axis = p.axis(v)
    last = p.pick(0, -1)
    return p.pick(
        f"{v}.chunk(2, {axis})[{last}]",
        f"{v}.split(1, {axis})[{last}]",
        f"{v}.split(2, {axis})[{last}]",
        f"{v}.tensor_split(2, {axis})[{last}]",
    )


def _cat(p: Chooser) -> str:
    v = p.value()
    w = p.like(v)
    if not v.rank or p.rng.random() < 0.4:
        return f"torch.stack({_list(str(v), str(w))}, {p.number(0, v.rank)})"
    axis = p.axis(v)
    return p.pick(
        f"torch.cat({_list(str(v), str(w))}, {axis})",
        f"torch.cat({_list(str(v), f'{v}[:1]')}, 0)",
        f"torch.cat([{v}] * 3, {axis})",
    )


def _expand(p: Chooser) -> str:
    v = p.value(min_rank=1, max_rank=4)
    return p.pick(
        f"{v}.unsqueeze(0).expand({p.number(1, 3)}, {', '.join(['-1'] * v.rank)})",
        f"{v}.repeat({', '.join(str(p.number(1, 2)) for _ in range(v.rank))})", f"{v}.expand_as({p.like(v)})",
        f"{v}.repeat_interleave(2, {p.axis(v)})", f"{v}[:1].expand({', '.join(p.sizes(v))})",
    )  # fmt: skip


def _move(p: Chooser) -> str:
    v = p.value(min_rank=1)
    axis = p.axis(v)
    return p.pick(f"{v}.flip({axis})", f"{v}.roll({p.pick(1, -1, f'{v}.shape[{axis}] // 2')}, {axis})")


def _triangle(p: Chooser) -> str:
    v = p.value(min_rank=2)
    return f"{v}.{p.pick('tril', 'triu')}({p.pick(0, 1, -1)})"


def _where(p: Chooser) -> str:
    v = p.value()
    condition = f"({p.like(v)} > 0)" if v.kind != "bool" else f"{p.like(v)}"
    return p.pick(
        f"torch.where({condition}, {v}, {p.like(v)})",
        f"{v}.masked_fill({condition}, {p.pick(0, 1)})",
        f"torch.where({condition}, {v}, 0)",
    )


def _gather(p: Chooser) -> str:
    v = p.value(min_rank=1)
    axis = p.axis(v)
    if p.rng.random() < 0.5:
        return f"{v}.gather({axis}, ({v} > 0).long() % {v}.shape[{axis}])"
    return p.pick(
        f"{v}.index_select({axis}, torch.arange({v}.shape[{axis}]).flip(0))", f"{v}[torch.arange({v}.shape[0]) // 2]",
        f"{v}[{v}.long().flatten()[:3] % {v}.shape[0]]",
    )  # fmt: skip


def _embed(p: Chooser) -> str:
    v = p.value("int", max_rank=3)
    return f"{p.add_part(nn.Embedding(8, 4))}({v} % 8)"


def _sized(p: Chooser) -> str:
    """A statement that uses sizes as values."""
    v = p.value(min_rank=1)
    axis = p.axis(v)
    n = f"{v}.shape[{axis}]"
    return p.pick(
        f"{v} * {n}", f"torch.arange({n})", f"torch.arange({n}) + {v}.shape[0]", f"{v}.float() / {n}",
        f"torch.zeros({n}, 2) + 1", f"torch.full(({n},), {n})", f"torch.linspace(0, 1, {n})",
        f"torch.ones({', '.join(p.sizes(v))})", f"torch.eye({n})", f"{v}.new_zeros({v}.shape)",
        f"torch.tensor(2.0) * {n}", f"{v}.float() * {n} ** -0.5",
    )  # fmt: skip


def _linear(p: Chooser) -> str:
    v = p.float_value(1, 4)
    return f"{p.add_part(nn.Linear(p.width(v), p.pick(4, 8), bias=p.pick(True, False)))}({v}.float())"


def _norm(p: Chooser) -> str:
    v = p.float_value(2, 4)
    if v.rank == 4 and p.rng.random() < 0.7:
        channels = int(v.shape[1])
        norms = nn.BatchNorm2d(channels), nn.GroupNorm(1, channels), nn.InstanceNorm2d(channels)
        return f"{p.add_part(p.pick(*norms))}({v}.float())"
    return f"{p.add_part(p.pick(nn.LayerNorm(p.width(v)), nn.RMSNorm(p.width(v))))}({v}.float())"


def _conv(p: Chooser) -> str:
    v = p.float_value(3, 4)
    channels, kernel = int(v.shape[1]), p.pick(1, 3)
    layers = (nn.Conv1d, nn.Conv2d) if p.rng.random() < 0.7 else (nn.ConvTranspose1d, nn.ConvTranspose2d)
    layer = layers[v.rank - 3](channels, p.pick(4, 8), kernel, stride=p.pick(1, 1, 2), padding=kernel // 2)
    return f"{p.add_part(layer)}({v}.float())"


def _pool(p: Chooser) -> str:
    v = p.float_value(4, 4)
    return p.pick(
        f"F.max_pool2d({v}, {p.pick(1, 2)})", f"F.avg_pool2d({v}, 2, ceil_mode={p.pick(True, False)})",
        f"F.adaptive_avg_pool2d({v}, {p.pick(1, 2)})", f"F.max_pool2d({v}, 3, 1, 1)", f"F.adaptive_max_pool2d({v}, 1)",
        f"F.avg_pool2d({v}, 3, 1, 1)",
    )  # fmt: skip


def _resize(p: Chooser) -> str:
    v = p.float_value(4, 4)
    return p.pick(
        f"F.interpolate({v}, scale_factor=2.0, mode={p.pick('nearest', 'bilinear')!r})",
        f"F.interpolate({v}, size=(5, 3), mode='bilinear')",
        f"F.interpolate({v}, size=({v}.shape[2] * 2, {v}.shape[3]), mode='nearest')", f"F.pixel_unshuffle({v}, 2)",
        f"F.pixel_shuffle({v}, 2)",
    )  # fmt: skip


def _pad(p: Chooser) -> str:
    v = p.value(min_rank=2)
    amount = p.pick((1, 1), (0, 2), (-1, 0), (1, 0))
    if v.kind == "float" and v.rank == 3 and p.rng.random() < 0.5:
        return f"F.pad({v}, (1, 0), mode={p.pick('reflect', 'replicate', 'circular')!r})"
    return f"F.pad({v}, {amount}, value={p.pick(0, 1)})"


def _product(p: Chooser) -> str:
    v = p.float_value(2, 4)
    return p.pick(
        f"{v} @ {v}.mT", f"torch.matmul({v}.mT, {p.like(v)})",
        f"torch.einsum('...ij,...kj->...ik', {v}, {p.like(v)})", f"torch.einsum('...ij->...ji', {v})",
        f"F.scaled_dot_product_attention({v}, {p.like(v)}, {p.like(v)})", f"torch.cdist({v}, {v}) ** 2",
    )  # fmt: skip


def _blocks(p: Chooser) -> str:
    if p.rng.random() < 0.5:
        v = p.float_value(3, 3)
        return f"{p.add_part(Attention(p.width(v), p.pick(1, 2), p.pick(True, False)))}({v}.float())"
    v = p.float_value(4, 4)
    return f"{p.add_part(Block(int(v.shape[1]), p.pick(1, 2)))}({v}.float())"


def _tokens(p: Chooser) -> str:
    v = p.float_value(4, 4)
    return p.pick(f"{v}.flatten(2).transpose(1, 2)", f"{v}.reshape({v}.shape[0], {v}.shape[1], -1).transpose(1, 2)")


STATEMENTS: tuple[Statement, ...] = (
    _elementwise, _binary, _scalar, _cast, _reduce, _count, _choose, _softmax, _flatten, _split_axis, _squeeze,
    _transpose, _slice, _narrow, _pieces, _cat, _expand, _move, _triangle, _where, _gather, _embed, _sized, _linear,
    _norm, _conv, _pool, _resize, _pad, _product, _blocks, _tokens,
)  # fmt: skip
