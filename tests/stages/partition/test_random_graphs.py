"""The partitions of a random graph together compute the results of the whole graph.

Graphs are created node by node, because export is slow."""

from __future__ import annotations

import operator
import os
import random
from typing import Any

import pytest
import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.stages.partition.units import is_size
from trtbuild.stages.program.functional import Program, assemble

#: TRTBUILD_RANDOM_GRAPHS=5000 tests more graphs.
COUNT = int(os.environ.get("TRTBUILD_RANDOM_GRAPHS", "60"))
WIDTH = 4
CASES = [[torch.rand(*size, WIDTH), torch.rand(*size, WIDTH) - 0.5] for size in ((1, 3), (2, 9), (6, 4))]

aten = torch.ops.aten


class GraphMaker:
    """Creates a graph with fake values. It has two inputs of shape (batch, length, 4), weights and a lifted constant.

    The fake inputs and the ranges of sizes are those of `seed_program`.
    """

    def __init__(self, seed_program: Program, seed: int) -> None:
        self.rng = random.Random(seed)
        self._ranges = seed_program.exported.range_constraints
        values = [node.meta["val"] for node in seed_program.input_nodes]
        self._mode = values[0].fake_mode
        self.graph = torch.fx.Graph()
        torch.manual_seed(seed)
        self.weights = [torch.rand(WIDTH, WIDTH) - 0.5, torch.rand(WIDTH), torch.rand(1, 1, WIDTH)]
        self.constant = torch.rand(WIDTH)
        self.stack: dict[str, tuple[str, str]] = {}
        self._calls: dict[str, int] = {}
        fake = [self._mode.from_tensor(value) for value in (*self.weights, self.constant)]
        *self.weight_nodes, self.constant_node = [self._placeholder(f"w{k}", value) for k, value in enumerate(fake)]
        self.inputs = [self._placeholder(f"x{k}", value) for k, value in enumerate(values)]
        #: Tensors of shape (batch, length, 4).
        self.pool = list(self.inputs)
        #: Axis (0: batch, 1: length) → the nodes that compute its size.
        self.size_nodes = {axis: [self.call(aten.sym_size.int, self.inputs[0], axis)] for axis in (0, 1)}

    def _placeholder(self, name: str, value: Any) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Add a node, with its fake value and the path of the current module."""
        node = self.graph.call_function(target, args, kwargs)
        fake_args, fake_kwargs = torch.fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        with self._mode:
            node.meta["val"] = target(*fake_args, **fake_kwargs)
        node.meta["nn_module_stack"] = dict(self.stack)
        return node

    def enter_module(self) -> None:
        """Make the next nodes belong to a call of a random module, or to the root."""
        path = self.rng.choice(["", "a", "b", "a.in", "layers.0", "layers.1", "layers.1.in"])
        self.stack = {"L__self__": ("", "M")}
        names = path.split(".") if path else []
        for depth in range(1, len(names) + 1):
            prefix = ".".join(names[:depth])
            number = self._calls[prefix] = self._calls.get(prefix, -1) + 1
            self.stack[f"L__self__{prefix}" + (f"@{number}" if number else "")] = (prefix, "X")

    def add(self) -> None:
        """Add a random operation on random tensors."""
        x, y = self.rng.choice(self.pool), self.rng.choice(self.pool)
        batch, length = self.rng.choice(self.size_nodes[0]), self.rng.choice(self.size_nodes[1])
        name = self.rng.choice([name for name in dir(self) if name.startswith("op_")])
        self.pool.append(getattr(self, name)(x, y, batch, length))

    def op_unary(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(self.rng.choice([aten.relu.default, aten.tanh.default, aten.sigmoid.default]), x)

    def op_binary(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(self.rng.choice([aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor]), x, y)

    def op_cumsum(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.cumsum.default, x, self.rng.choice([0, 1, 2]))

    def op_linear(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.linear.default, x, self.weight_nodes[0], self.weight_nodes[1])

    def op_constant(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.mul.Tensor, x, self.constant_node)

    def op_token(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.expand.default, self.weight_nodes[2], [batch, length, WIDTH])

    def op_ones(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.ones.default, [batch, length, WIDTH], device=torch.device("cpu"), pin_memory=False)

    def op_flat(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        flat = self.call(aten.reshape.default, x, [self.call(operator.mul, batch, length), WIDTH])
        flat = self.call(aten.cumsum.default, flat, 0)
        return self.call(aten.reshape.default, flat, [batch, length, WIDTH])

    def op_number(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.mul.Tensor, x, self.call(operator.add, batch, 2))

    def op_float(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        return self.call(aten.div.Tensor, x, self.call(torch.sym_float, length))

    def op_own_size(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        axis = self.rng.choice([0, 1])
        self.size_nodes[axis].append(self.call(aten.sym_size.int, x, axis))
        return self.call(aten.neg.default, x)

    def op_longer(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        """Some tensors have the size 2 * length, which no input of the model has."""
        joined = self.call(aten.cumsum.default, self.call(aten.cat.default, [x, y], 1), 1)
        double_length = self.call(aten.sym_size.int, joined, 1)
        joined = self.call(aten.reshape.default, joined, [batch, double_length, 2, 2])
        joined = self.call(aten.reshape.default, self.call(aten.relu.default, joined), [batch, double_length, WIDTH])
        return self.call(aten.slice.Tensor, joined, 1, 0, length)

    def op_halves(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        parts = self.call(aten.split.Tensor, x, 2, 2)
        first, second = (self.call(operator.getitem, parts, k) for k in (0, 1))
        return self.call(aten.cat.default, [self.call(aten.tanh.default, second), first], 2)

    def op_best(self, x: Any, y: Any, batch: Any, length: Any) -> torch.fx.Node:
        maximum = self.call(aten.max.dim, x, 2, True)
        values, places = (self.call(operator.getitem, maximum, k) for k in (0, 1))
        return self.call(aten.add.Tensor, self.call(aten.mul.Tensor, y, values), places)

    def program(self) -> Program:
        """The program without dead code. It returns the last tensor, and up to three random ones."""
        extra = [self.rng.choice([*self.pool, self.weight_nodes[1]]) for _ in range(self.rng.randint(0, 3))]
        results = [self.pool[-1], *extra]
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        names = [(node.name, InputKind.USER_INPUT) for node in self.weight_nodes]
        names += [(self.constant_node.name, InputKind.CONSTANT_TENSOR)]
        names += [(node.name, InputKind.USER_INPUT) for node in self.inputs]
        inputs = [
            InputSpec(kind, TensorArgument(name), "c" if kind is InputKind.CONSTANT_TENSOR else None)
            for name, kind in names
        ]
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        module = torch.fx.GraphModule({}, self.graph)
        return Program(assemble(module, inputs, outputs, self._ranges, {"c": self.constant}), len(self.weights))


@pytest.mark.parametrize("seed", range(COUNT))
def test_partitions_of_random_graphs_equal_the_whole_graph(
    seed: int, seed_program: Program, model_of: Any, fake_validator: Any
) -> None:
    rng = random.Random(9000 + seed)
    maker = GraphMaker(seed_program, seed)
    for _ in range(rng.randint(2, 6)):
        maker.enter_module()
        for _ in range(rng.randint(1, 5)):
            maker.add()
    program = maker.program()
    model = model_of(program, maker.weights, CASES[0])
    names = sorted({name for name in model.operators if name.startswith("aten.") and "sym_size" not in name})
    tensors = [node for node in program.graph.nodes if node.op == "call_function" and not is_size(node)]
    paths = {path for node in tensors for path, _ in node.meta["nn_module_stack"].values()} - {""}
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for _ in range(3):
        listed, refused, untranslatable = (rng.sample(names, k=rng.randint(0, (len(names) + 1) // 3)) for _ in range(3))
        validator = fake_validator(refused=dict.fromkeys(refused, "refused"), untranslatable=frozenset(untranslatable))
        patterns = tuple(rng.sample(sorted(paths), k=rng.randint(0, min(len(paths), 3)))) or ("model",)
        partitioned = model.partition(
            validator,
            torch_executed_ops=tuple(listed),
            granularity=patterns,
            min_block_size=rng.choice([1, 1, 2, 4]),
        )
        partitioned.assert_valid_document(with_storage=seed % 8 == 0).assert_same_results_as_unpartitioned(*CASES)
        for entry in partitioned.partitions:
            if entry.kind == "tensorrt":
                assert not {*listed, *refused, *untranslatable} & set(partitioned.operators(entry.name))
        computed = sorted(
            k for entry in partitioned.partitions for k in entry.calls if k >= 0 and not is_size(calls[k])
        )
        assert len(computed) == len(set(computed)), "two partitions compute the same call"


def test_a_tensor_of_which_only_a_size_is_used_is_not_computed(seed_program: Program, model_of: Any) -> None:
    """Otherwise an engine for this tensor would have no output that is read."""
    maker = GraphMaker(seed_program, 0)
    x, y = maker.inputs
    joined = maker.call(aten.tanh.default, maker.call(aten.cat.default, [x, y], 1))
    batch, double_length = (maker.call(aten.sym_size.int, joined, axis) for axis in (0, 1))
    ones = maker.call(aten.ones.default, [batch, double_length, 1], device=torch.device("cpu"), pin_memory=False)
    maker.pool.append(maker.call(aten.add.Tensor, maker.call(aten.cat.default, [x, x], 1), ones))
    model = model_of(maker.program(), maker.weights, CASES[0])
    assert "aten.tanh.default" in model.operators
    for listed in ((), ("aten.ones",), ("aten.ones", "aten.tanh"), ("aten.add",), ("aten.cat",)):
        partitioned = (
            model.partition(torch_executed_ops=listed)
            .assert_valid_document()
            .assert_same_results_as_unpartitioned(*CASES)
        )
        assert not any("aten.tanh.default" in partitioned.operators(name) for name in partitioned.names)
