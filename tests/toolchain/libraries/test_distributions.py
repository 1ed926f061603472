"""`installed_version` returns the same versions as `importlib.metadata`, even for unusual distributions."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from trtbuild.toolchain.libraries.distributions import installed_version


def install(folder: Path, name: str, version: str, *, header: str | None = None) -> None:
    """Write the metadata of a distribution into `folder`. `header` replaces its header ``Version``."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    headers = f"Metadata-Version: 2.1\nName: {name}\n{header or f'Version: {version}'}\n"
    description = "Version: 9\n"  # a text that looks like a header
    (info / "METADATA").write_text(f"{headers}\n{description}")


def test_returns_the_version_of_every_installed_distribution() -> None:
    names = {distribution.name for distribution in metadata.distributions()}
    assert len(names) > 10
    assert {name: installed_version(name) for name in names} == {name: metadata.version(name) for name in names}


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("trtbuild-does-not-need-this") is None


def test_compares_names_like_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "Some_Odd.name", "1.5+cpu")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("some-odd-name") == "1.5+cpu" == metadata.version("some-odd-name")


def test_reads_the_version_from_the_header_and_not_from_the_directory_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "odd", "1.0", header="Version: 2.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("odd") == "2.0" == metadata.version("odd")


def test_the_first_folder_of_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", "odd", "1.0")
    install(tmp_path / "two", "odd", "2.0")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    assert installed_version("odd") == "2.0" == metadata.version("odd")


def test_chooses_like_importlib_between_two_distributions_with_one_name_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "odd", "1.0")
    install(tmp_path, "odd", "2.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("odd") == metadata.version("odd")


def test_finds_a_new_installation_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("odd") is None
    install(tmp_path, "odd", "1.0")
    assert installed_version("odd") == "1.0"
