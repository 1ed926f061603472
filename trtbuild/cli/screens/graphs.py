"""A build graph in three forms: plain text, Graphviz and Mermaid."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, first_names
from trtbuild.driver.answers.documents import Graph


def graph_screen(form: str) -> Callable[[Graph], list[str]]:
    """The function that returns the lines of a graph in the form ``dot``, ``mermaid`` or ``text``."""
    return {"dot": _dot, "mermaid": _mermaid}.get(form, _text)


def _text(document: Graph) -> list[str]:
    producers: dict[str, list[str]] = defaultdict(list)
    for producer, consumer in document.edges:
        producers[consumer].append(producer)
    steps_of_model: dict[str, list[str]] = defaultdict(list)
    for node in document.nodes:
        steps_of_model[node.model].append(node.id)
    lines: list[str] = []
    for model, steps in steps_of_model.items():
        lines.append(terminal.bold(model))
        rows = []
        for step in steps:
            needs = [producer.removeprefix(f"{model}/") for producer in producers[step]]
            rows.append(
                (f"  {step.removeprefix(f'{model}/')}", terminal.dim(f"← {first_names(needs)}") if needs else "")
            )
        lines += align_rows(rows)
    return lines


def _dot(document: Graph) -> list[str]:
    nodes = [f"  {json.dumps(node.id)} [shape=box];" for node in document.nodes]
    edges = [f"  {json.dumps(source)} -> {json.dumps(target)};" for source, target in document.edges]
    return ["digraph trtbuild {", "  rankdir=LR;", *nodes, *edges, "}"]


def _mermaid(document: Graph) -> list[str]:
    names = {node.id: f"n{number}" for number, node in enumerate(document.nodes)}
    nodes = [f'  {names[node.id]}["{node.id}"]' for node in document.nodes]
    edges = [f"  {names[source]} --> {names[target]}" for source, target in document.edges if source in names]
    return ["flowchart LR", *nodes, *edges]
