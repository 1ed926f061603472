"""Checks of the manifest: whether it is valid, and whether this machine can build its targets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trtbuild import manifest
from trtbuild.driver.doctor.finding import Finding, ok, problem, warning
from trtbuild.errors import ManifestErrors, TrtbuildError
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.devices import device_sms


def check_manifest(project: Path, files: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding about the manifest, then a warning for each target that this machine cannot build."""
    try:
        loaded = manifest.load(project, files or None)
    except ManifestErrors as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        text = f"{error.where()}: {error.text}{more}"
        yield problem("manifest", text, error.hint or "trtbuild plan  shows every problem")
        return
    except TrtbuildError as error:
        yield warning("manifest", error.text, "trtbuild init")
        return
    except Exception as error:  # for example a broken library
        yield problem(
            "manifest", f"it cannot be read: {type(error).__name__}: {error}", "pip install --force-reinstall trtbuild"
        )
        return
    count = len(loaded.models)
    yield ok("manifest", f"{', '.join(loaded.files[:3])}: {count} model{'' if count == 1 else 's'}")
    devices: tuple[int, ...] = ()
    with contextlib.suppress(Exception):
        devices = device_sms()
    checked = set()
    for model in loaded.models:
        for target in model.targets:
            key = (target, model.builder)
            if key in checked:
                continue
            checked.add(key)
            version = table.installed_version(target.toolchain)
            try:
                table.check_target(target, model.builder, version, devices=devices)
            except TrtbuildError as error:
                fix = error.hint or "trtbuild plan"
                yield warning("target", f"model {model.name!r}: {error.text}", fix)
