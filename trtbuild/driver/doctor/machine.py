"""Checks of the GPU, the clock and the text encoding."""

from __future__ import annotations

import locale
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trtbuild.driver.doctor.finding import Finding, ok, warning
from trtbuild.toolchain.libraries import table

#: How long the CUDA driver may take to answer.
DRIVER_LIMIT_S = 30.0

#: A larger difference between the clocks of the file system and the machine gives a warning. `make` compares times of
#: both clocks, and so does trtbuild when it looks for changed files.
MAX_SKEW_S = 2.0


def check_gpu() -> Finding:
    """Check that the installed toolchains can build for the GPUs of this machine.

    A child process calls the driver, because a broken driver can crash the process that calls it.
    """
    code = "from trtbuild.toolchain.libraries import devices; print('sms', *devices.device_sms())"
    try:
        process = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DRIVER_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
    except (subprocess.TimeoutExpired, OSError):
        process = None
    if process is None or process.returncode != 0:
        return warning("gpu", "the CUDA driver fails or does not answer", "nvidia-smi  shows the reason")
    words = next((line.split() for line in process.stdout.splitlines() if line.startswith("sms")), ["sms"])
    return _gpu_finding(tuple(int(word) for word in words[1:]))


def _gpu_finding(sms: tuple[int, ...]) -> Finding:
    """Return the finding about GPUs with these SMs (numbers of architectures)."""
    installed_flavours = [
        flavour for name, flavour in table.FLAVOURS.items() if table.installed_version(name) is not None
    ]
    flavours_that_need_no_gpu = [flavour for flavour in installed_flavours if flavour.sms is not None]
    build_text = "; ".join(
        f"{flavour.name} builds for SM {_join_numbers(flavour.sms or ())} without a GPU"
        for flavour in flavours_that_need_no_gpu
    )
    if not sms:
        if installed_flavours and not flavours_that_need_no_gpu:
            return warning("gpu", "no GPU found, and tensorrt builds on a GPU only", "pip install 'trtbuild[rtx]'")
        return ok("gpu", f"no GPU found{'; ' + build_text if build_text else ''}; engines cannot be run here")
    unsupported = [
        sm for sm in sms if not any(flavour.sms is None or sm in flavour.sms for flavour in installed_flavours)
    ]
    text = f"SM {_join_numbers(sms)}"
    if unsupported and installed_flavours:
        text += f"; no installed toolchain builds for SM {_join_numbers(tuple(dict.fromkeys(unsupported)))}"
        return warning("gpu", text, "pip install 'trtbuild[tensorrt]'")
    return ok("gpu", text)


def _join_numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def check_clock(folder: Path) -> Finding:
    """Check that new files in `folder` get the time of this machine's clock."""
    while not folder.is_dir():
        folder = folder.parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trtbuild-doctor-") as file:
            file.write(b"?")
            file.flush()
            skew_s = os.stat(file.name).st_mtime - time.time()  # noqa: PTH116
    except OSError as error:
        return ok("clock", f"not checked: {folder} cannot be written ({error.strerror})")
    if abs(skew_s) > MAX_SKEW_S:
        text = f"files in {folder} get times {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the system's"
        return warning("clock", text, "set both clocks (timedatectl set-ntp true), here and on the file server")
    return ok("clock", "files get the system's time")


def check_text_encoding() -> Finding:
    """Check that file names and text use UTF-8."""
    names, text = sys.getfilesystemencoding(), locale.getpreferredencoding(False)
    if all(encoding.lower().replace("-", "") in ("utf8", "utf8mode") for encoding in (names, text)):
        return ok("encoding", "UTF-8")
    return warning("encoding", f"{text} for text, {names} for file names", "export LANG=C.UTF-8")
