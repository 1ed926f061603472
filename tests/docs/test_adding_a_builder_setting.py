"""The recipe "Adding a builder setting" of docs/architecture.md works: after its edit, trtbuild has the setting."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx

from tests.core.recipes.test_recipe import GOLDEN

ROOT = Path(__file__).parents[2]
NAME = "error_on_timing_cache_miss"
#: The file to which the recipe adds a field, and the text before which the field is added.
TABLE = "core/model/builder_settings.py"
END = "\n\n\n#: Name of a setting → its facts"


def field_of_the_recipe() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("### Adding a builder setting\n")[2].partition("\n### ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len([line for line in section.splitlines() if line.strip()]) <= 22  # the recipe is short
    return str(code)


def run_setting_facts(folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run `tests.docs.setting_facts` in `folder`. Python looks for modules in `path`, and then in this project."""
    return subprocess.run(
        [sys.executable, "-m", "tests.docs.setting_facts", NAME],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The facts about the new setting, from a copy of trtbuild with the recipe's field."""
    copy, project = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "trtbuild", copy / "trtbuild", ignore=shutil.ignore_patterns("__pycache__"))
    table = copy / "trtbuild" / TABLE
    text = table.read_text("utf-8")
    assert text.count(END) == 1
    field = textwrap.indent(field_of_the_recipe().rstrip(), "    ")
    table.write_text(text.replace(END, f"\n{field}{END}"), "utf-8")
    process = run_setting_facts(project, copy)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)  # type: ignore[no-any-return]


def test_without_the_field_the_setting_does_not_exist(tmp_path: Path) -> None:
    process = run_setting_facts(tmp_path)
    assert process.returncode != 0 and NAME in process.stderr


def test_the_manifest_accepts_the_setting_and_rejects_wrong_values_with_their_line(facts: dict[str, Any]) -> None:
    accepted, errors = facts["manifest"]
    assert accepted is True
    assert "trtbuild.yaml:13:" in errors
    assert f"`{NAME}` must be true or false, not the text 'surely not'" in errors


def test_the_default_changes_no_key_and_another_value_changes_the_key_of_engines(facts: dict[str, Any]) -> None:
    assert facts["keys"] == {stage: key for stage, key in GOLDEN.items() if stage != "calibrate"}
    assert {stage for stage, key in facts["other keys"].items() if key != GOLDEN[stage]} == {"engine"}


def test_the_builder_configuration_has_the_flag(facts: dict[str, Any]) -> None:
    default, changed = facts["flags"]
    assert default ^ changed == 1 << int(tensorrt_rtx.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)


def test_the_page_about_manifests_has_the_setting(facts: dict[str, Any]) -> None:
    text = "Whether a missing timing is an error. `tensorrt` has it from 10.0 on."
    assert facts["reference"] == [f"| `{NAME}` | true or false | `false` | {text} |"]


def test_trtexec_has_the_argument_if_the_value_is_not_the_default(facts: dict[str, Any]) -> None:
    default, changed = facts["trtexec"]
    assert set(changed) - set(default) == {"--errorOnTimingCacheMiss"} and set(default) <= set(changed)
