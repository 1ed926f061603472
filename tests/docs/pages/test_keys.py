"""The tables of docs/keys.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

from trtbuild.core.recipes import key_fields, keys

PAGE = (Path(__file__).parents[3] / "docs" / "keys.md").read_text()


def table(name: str) -> list[list[str]]:
    """Return the cells of each row of a table, without the header."""
    (body,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.strip().splitlines()]
    return rows[2:]  # the header has two lines


def test_the_page_lists_the_excluded_fields_of_the_code() -> None:
    listed = {tuple(row[0].strip("`").split(".")): row[1] for row in table("excluded")}
    assert listed == dict(key_fields.EXCLUDED)
    listed = {tuple(row[0].strip("`").split(".")): row[1] for row in table("omitted at default")}
    assert listed == dict(key_fields.OMITTED_AT_DEFAULT)


def test_the_page_lists_the_steps_and_versions_of_the_code() -> None:
    listed = {row[0]: int(row[1]) for row in table("parts")}
    assert listed == dict(keys.STEP_VERSIONS)


def test_the_page_lists_the_parts_of_each_recipe() -> None:
    from tests.core import recipe_values

    listed = {row[0]: re.findall(r"`([^`]+)`", row[2]) for row in table("parts")}
    for stage, recipe in recipe_values.recipe_of_each_stage().items():
        names = [name for name, _ in recipe.parts if ":" not in name]
        assert listed[stage] == names, stage
