"""`trtbuild verify` accepts three examples, within 1e-5 in float32 and 5e-3 in float16, also at random sizes.

In the JSON document, each entry of `cuts` is about one way to divide the model into partitions. `whole` is the comparison
of the whole model, and `lowered` is that of the lowered program, which PyTorch runs.
"""

from __future__ import annotations

import pytest

from tests.conftest import BuiltExamples, CommandLine

#: The examples that are verified quickly. `test_numbers` compares more examples, at min, opt and max.
NAMES = ("keyword", "three_parts", "bert")


def test_verify_accepts_the_examples(built_examples: BuiltExamples) -> None:
    trtbuild = CommandLine(built_examples.project, built_examples.cache)
    document = trtbuild("verify", *NAMES, "--points", "1", "--force")
    assert document["ok"] and [model["model"] for model in document["models"]] == list(NAMES)
    for model in document["models"]:
        (result,) = model["cuts"]
        assert result["verdict"] == "run" and result["status"] == "right"
        assert result["tolerance"] == {"float32": 1e-5, "float16": 5e-3}[model["precision"]]
        assert {part["partition"] for part in result["partitions"]} == {
            part["name"]
            for target in built_examples.index(model["model"])["targets"].values()
            for part in target["partitions"]["partitions"]
            if part["kind"] == "tensorrt"
        }
        assert all(part["points"] == len(result["points"]) for part in result["partitions"])
        assert result["whole"]["error"] == pytest.approx(result["lowered"]["error"], rel=0.1, abs=1e-5)
    for name in NAMES:  # other tests compare the files of these folders
        (built_examples.project / "dist" / name / "provenance.json").unlink()


def test_a_package_with_provenance_is_up_to_date(built_examples: BuiltExamples) -> None:
    trtbuild = CommandLine(built_examples.project, built_examples.cache)
    trtbuild("verify", "mlp")
    provenance = built_examples.project / "dist" / "mlp" / "provenance.json"
    assert provenance.is_file()
    assert {model["model"]: model["up_to_date"] for model in trtbuild("status")["models"]}["mlp"]
    provenance.unlink()  # other tests compare the files of this folder
