"""Protobuf's parser, with Triton's schema, reads what `render` has written."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from tests.driver.outputs.triton.repositories import schema
from trtbuild.driver.outputs.triton.text_format import EnumValue, render


def test_messages_lists_enum_values_and_numbers_are_read_back() -> None:
    text = render(
        [
            ("name", "m"),
            ("max_batch_size", 0),
            ("input", (("name", "x"), ("data_type", EnumValue("TYPE_FP32")), ("dims", [-1, 3]), ("optional", True))),
            ("output", (("name", "y"), ("dims", []), ("reshape", (("shape", []),)))),
            ("output", (("name", "z"),)),
            ("instance_group", (("profile", ["0", "1"]),)),
        ]
    )
    config = text_format.Parse(text, schema().ModelConfig())
    assert (config.name, config.max_batch_size, config.input[0].optional) == ("m", 0, True)
    assert list(config.input[0].dims) == [-1, 3]
    assert [entry.name for entry in config.output] == ["y", "z"] and config.output[0].HasField("reshape")
    assert list(config.instance_group[0].profile) == ["0", "1"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a'b", "größe", "行", "a\nb\t\0", "{name: 1}"])
def test_any_name_is_read_back(name: str) -> None:
    assert text_format.Parse(render([("name", name)]), schema().ModelConfig()).name == name
