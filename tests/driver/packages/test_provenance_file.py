"""The provenance file that is written into the directory of a package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.core.verified_values import a_cut_entry
from tests.driver.conftest import Small
from trtbuild.driver.packages import provenance_file
from trtbuild.runtime.packages.package import open_package


def test_writing_replaces_a_link_and_not_its_destination(small: Small, tmp_path: Path) -> None:
    shutil.copytree(small.package, tmp_path / "p")
    (tmp_path / "mine").write_text("mine")
    for name in ("provenance.json", ".provenance.json.fresh"):
        (tmp_path / "p" / name).symlink_to(tmp_path / "mine")
    new_entry = a_cut_entry(by="engine")  # a cut is one way to divide the model into partitions
    provenance_file.add(open_package(tmp_path / "p"), [new_entry])
    assert (tmp_path / "mine").read_text() == "mine"
    written = tmp_path / "p" / "provenance.json"
    assert not written.is_symlink()
    (entry,) = json.loads(written.read_text())["verified"]
    assert (entry["by"], entry["targets"]) == ("engine", ["ada"])
    assert not {"verdict", "worst_input"} & entry.keys()  # these fields describe a single run
