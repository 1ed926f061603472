"""Checks of Python, the imported trtbuild and the ``trtbuild`` command on PATH, and the line for shell completion."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from importlib import metadata
from pathlib import Path

from trtbuild import errors
from trtbuild.driver.doctor.finding import Finding, ok, problem, warning

#: `requires-python` of pyproject.toml.
OLDEST_PYTHON = (3, 11)


def check_python() -> Finding:
    """Check the version of Python, and that Python is a 64-bit build."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return problem("python", f"{version}; trtbuild needs {oldest}", f"python{oldest} -m venv .venv")
    if struct.calcsize("P") < 8:
        return problem("python", f"{version}, 32 bits: no torch and no TensorRT", "install a 64-bit Python")
    return ok("python", f"{version}, {sys.prefix}")


def check_installations() -> list[Finding]:
    """Check the imported trtbuild. If it is installed, look for other copies, too."""
    folder = Path(errors.__file__).resolve().parent
    versions = _installed_versions()
    other_copies = [path for path in _package_folders() if path != folder]
    version = versions[0][1] if versions else None
    pip = f"{sys.executable} -m pip"
    if version is None:
        return [
            warning(
                "trtbuild", f"{folder} is not installed: its version is unknown", f"{pip} install -e {folder.parent}"
            )
        ]
    findings = [ok("trtbuild", f"{version}, {folder}")]
    if len(versions) > 1:
        places = ", ".join(f"{version} in {place}" for place, version in versions)
        findings.append(
            problem("trtbuild", f"it is installed more than once: {places}", f"{pip} uninstall -y trtbuild")
        )
    for copy in other_copies:
        findings.append(
            problem(
                "trtbuild",
                f"there is a second package at {copy}; {folder} is used",
                f"{pip} uninstall -y trtbuild, or remove {copy.parent} from PYTHONPATH",
            )
        )
    return findings


def _installed_versions() -> list[tuple[str, str]]:
    """Return (entry, version) for each entry of ``sys.path`` that has a distribution of trtbuild."""
    versions: dict[str, str] = {}
    for entry in dict.fromkeys(os.path.realpath(entry or ".") for entry in sys.path):
        for distribution in metadata.distributions(name="trtbuild", path=[entry]):
            versions.setdefault(entry, distribution.version)
    return list(versions.items())


def _package_folders() -> list[Path]:
    """Return the folders that ``import trtbuild`` could find, in the order of ``sys.path``."""
    entries = dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path)
    return [entry / "trtbuild" for entry in entries if (entry / "trtbuild" / "__init__.py").is_file()]


def check_command() -> Finding:
    """Check that the ``trtbuild`` on PATH belongs to this Python."""
    script_folder = Path(sys.executable).parent
    path = shutil.which("trtbuild")
    if path is None:
        if (script_folder / "trtbuild").exists():
            return warning("command", "no `trtbuild` on PATH", f'export PATH="{script_folder}:$PATH"')
        return warning("command", "no `trtbuild` on PATH", f"{sys.executable} -m trtbuild is the same command")
    if _belongs_to_this_python(Path(path)):
        return ok("command", path)
    return warning(
        "command",
        f"the first `trtbuild` on PATH, {path}, does not belong to this Python ({sys.executable})",
        f'export PATH="{script_folder}:$PATH"',
    )


def _belongs_to_this_python(script: Path) -> bool:
    if script.resolve().parent == Path(sys.executable).parent.resolve() or script.parent == Path(sys.executable).parent:
        return True
    try:
        beginning = script.read_bytes()[:4096]  # a console script names its Python at its beginning
    except OSError:
        return False
    return os.fsencode(sys.executable) in beginning


def completion_hint() -> Finding:
    """Return a finding with the line that turns on completion in the user's shell."""
    shell = os.path.basename(os.environ.get("SHELL", "")) or "bash"
    lines = {
        "bash": 'eval "$(trtbuild completion bash)"  in ~/.bashrc',
        "zsh": 'eval "$(trtbuild completion zsh)"  in ~/.zshrc',
        "fish": "trtbuild completion fish > ~/.config/fish/completions/trtbuild.fish",
    }
    return ok("completion", f"for {shell if shell in lines else 'bash'}", lines.get(shell, lines["bash"]))
