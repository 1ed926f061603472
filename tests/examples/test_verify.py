"""`trtbuild verify` finds the examples right: float32 within 1e-5, float16 within 5e-3, at random shapes too."""

from __future__ import annotations

import pytest

from tests.conftest import BuiltExamples, CommandLine

#: The quick ones; `test_numbers` has all of them at min, opt and max.
NAMES = ("keyword", "three_parts", "bert")


def test_the_examples_are_right(built_examples: BuiltExamples) -> None:
    trtbuild = CommandLine(built_examples.project, built_examples.cache)
    document = trtbuild("verify", *NAMES, "--points", "1", "--force")
    assert document["ok"] and [model["model"] for model in document["models"]] == list(NAMES)
    for model in document["models"]:
        (cut,) = model["cuts"]
        assert cut["verdict"] == "run" and cut["status"] == "right"
        assert cut["tolerance"] == {"float32": 1e-5, "float16": 5e-3}[model["precision"]]
        assert {part["partition"] for part in cut["partitions"]} == {
            part["name"]
            for target in built_examples.index(model["model"])["targets"].values()
            for part in target["partitions"]["partitions"]
            if part["kind"] == "tensorrt"
        }
        assert all(part["points"] == len(cut["points"]) for part in cut["partitions"])
        assert cut["whole"]["error"] == pytest.approx(cut["lowered"]["error"], rel=0.1, abs=1e-5)
    for name in NAMES:
        (built_examples.project / "dist" / name / "provenance.json").unlink()  # others look at what is in these folders


def test_provenance_does_not_stand_in_the_way_of_what_a_build_writes(built_examples: BuiltExamples) -> None:
    trtbuild = CommandLine(built_examples.project, built_examples.cache)
    trtbuild("verify", "mlp")
    place = built_examples.project / "dist" / "mlp" / "provenance.json"
    assert place.is_file()
    assert {model["model"]: model["up_to_date"] for model in trtbuild("status")["models"]}["mlp"]
    place.unlink()
