"""A ``.pt2`` file describes its package in ``trtbuild.json``."""

from __future__ import annotations

import pytest

from trtbuild.core.packages.exported_file import ExportedFileInfo
from trtbuild.errors import PackageDamaged, PackageTooNew

INFO = ExportedFileInfo("vit", "ada", "a" * 64)


def test_the_text_is_read_back() -> None:
    assert ExportedFileInfo.from_text(INFO.to_text().encode(), "vit.pt2") == INFO


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"schema": "trtbuild.pt2/1"}', b"[" * 100_000])
def test_an_invalid_text_is_a_damaged_package(text: bytes) -> None:
    with pytest.raises(PackageDamaged, match=r"vit\.pt2: its trtbuild\.json cannot be used"):
        ExportedFileInfo.from_text(text, "vit.pt2")


def test_a_newer_format_is_named() -> None:
    text = INFO.to_text().replace("trtbuild.pt2/1", "trtbuild.pt2/2")
    with pytest.raises(PackageTooNew, match=r"vit\.pt2 has the format trtbuild\.pt2/2"):
        ExportedFileInfo.from_text(text.encode(), "vit.pt2")
