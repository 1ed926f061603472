"""The three forms of a build graph: text, dot and mermaid."""

from __future__ import annotations

import click

from trtbuild.cli.screens.graphs import graph_screen
from trtbuild.core.planning.graph import Stage
from trtbuild.driver.answers.documents import Graph, Node

STAGES: tuple[Stage, ...] = ("trace", "lower", "package")
GRAPH = Graph(
    nodes=[Node(id=f"m/{stage}", model="m", stage=stage, target=None, verdict="hit") for stage in STAGES],
    edges=[("m/trace", "m/lower"), *((f"m/engine/p{number}@ada", "m/package") for number in range(9))],
)


def test_the_text_has_a_section_for_each_model_and_shortens_long_lists() -> None:
    assert [click.unstyle(line) for line in graph_screen("text")(GRAPH)] == [
        "m",
        "  trace",
        "  lower    ← trace",
        "  package  ← engine/p0@ada, engine/p1@ada, engine/p2@ada and 6 more",
    ]


def test_dot_and_mermaid_contain_nodes_and_edges() -> None:
    dot = graph_screen("dot")(GRAPH)
    assert dot[0] == "digraph trtbuild {"
    assert '  "m/trace" -> "m/lower";' in dot
    assert dot[-1] == "}"
    mermaid = graph_screen("mermaid")(GRAPH)
    assert mermaid[0] == "flowchart LR"
    assert '  n0["m/trace"]' in mermaid
    assert "  n0 --> n1" in mermaid
