"""Prints facts about one builder setting as JSON, such as the values in a manifest, the keys and TensorRT's flags.

`tests.docs.test_adding_a_builder_setting` runs this program with a changed copy of trtbuild. The argument is the name of
the setting. The working directory must be empty.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorrt_rtx

from tests.core import recipe_values
from tests.core.builder_values import other_value
from tests.driver.inspection.test_trtexec import command_of
from tests.manifest.conftest import BASE
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.errors import ManifestErrors
from trtbuild.manifest import load, reference
from trtbuild.toolchain.compiling.configuration import configure

#: A value that no setting accepts.
INVALID_VALUE = "surely not"


def loaded_value(name: str, value: Any) -> Any:
    """Load a manifest with this value. Return the model's value, or the text of the errors."""
    Path("trtbuild.yaml").write_text(f"{BASE}    builder: {{{name}: {json.dumps(value)}}}\n")
    try:
        (model,) = load(Path()).models
    except ManifestErrors as errors:
        return str(errors)
    return getattr(model.builder, name)


def flags(settings: BuilderSettings) -> int:
    builder = tensorrt_rtx.Builder(tensorrt_rtx.Logger(tensorrt_rtx.Logger.ERROR))
    job = EngineJob("onnx", (), (), settings, Target("ada", 89), tensorrt_rtx.__version__)
    return int(configure(tensorrt_rtx, builder, builder.create_network(0), job).flags)


def facts(name: str) -> dict[str, Any]:
    """Return the facts by name.

    The two parts of `manifest` are about a valid and an invalid value. The two parts of `flags` and of `trtexec` are about
    the default and the valid value.
    """
    value = other_value(name)
    changed = replace(BuilderSettings(), **{name: value})
    build = recipe_values.Build()
    changed_build = replace(build, model=replace(build.model, builder=replace(build.model.builder, **{name: value})))
    return {
        "manifest": [loaded_value(name, value), loaded_value(name, INVALID_VALUE)],
        "keys": {stage: recipe.key for stage, recipe in build.recipes().items()},
        "other keys": {stage: recipe.key for stage, recipe in changed_build.recipes().items()},
        "flags": [flags(BuilderSettings()), flags(changed)],
        "reference": [line for line in reference().splitlines() if f"`{name}`" in line],
        "trtexec": [command_of().arguments, command_of(changed).arguments],
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1])))
