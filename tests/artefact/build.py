"""The artefact as `sam build` makes it, for this machine's own platform."""

import compileall
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).parents[2]
BUILD_S = 300.0

_PLATFORMS: Mapping[tuple[str, str], str] = {
    ("Linux", "x86_64"): "x86_64-manylinux2014",
    ("Linux", "aarch64"): "aarch64-manylinux2014",
    ("Darwin", "x86_64"): "x86_64-apple-darwin",
    ("Darwin", "arm64"): "aarch64-apple-darwin",
}

PLATFORM = _PLATFORMS.get((platform.system(), platform.machine()), "")
"""The packages' platform of this machine; empty: none is known."""

_RUNTIME = (
    *("awslambdaric", "snapshot-restore-py", "boto3", "botocore", "jmespath"),
    *("python-dateutil", "s3transfer", "simplejson", "six", "urllib3"),
)
"""What Lambda's Python runtime brings: its client of the Runtime API, and boto3."""


@dataclass(frozen=True)
class Artefact:
    """A built project: a folder for each function and layer, and the template that names them."""

    folder: Path
    runtime: Path
    """What stands for /var/runtime: the runtime's own packages and nothing else."""

    @property
    def layer(self) -> Path:
        """What is mounted at /opt/python."""
        return self.folder / "RuntimeLayer" / "python"

    def functions(self) -> dict[str, dict[str, Any]]:
        """The functions of the built template: their properties over those of Globals."""
        template = yaml_parse((self.folder / "template.yaml").read_text(encoding="utf-8"))
        common = template["Globals"]["Function"]
        return {
            name: _merged(common, resource["Properties"])
            for name, resource in template["Resources"].items()
            if resource["Type"] == "AWS::Serverless::Function"
        }


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    variables = {
        **common["Environment"]["Variables"],
        **own.get("Environment", {}).get("Variables", {}),
    }
    return {**common, **own, "Environment": {"Variables": variables}}


def build(target: Path) -> Artefact:
    """Run `make build`, which runs `sam build`, into `target`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment |= {"LAMBDA_PYTHON": python, "LAMBDA_PLATFORM": PLATFORM}
    folder = target / "build"
    # The environment is as it is: a test run must not change it under the others.
    command = ["make", "--old-file=.venv/.stamp", "build", f"BUILD_ARGS=--build-dir {folder}"]
    options: Any = {"capture_output": True, "text": True, "timeout": BUILD_S}
    made = subprocess.run(command, cwd=ROOT, env=environment, check=False, **options)
    if made.returncode != 0:
        raise RuntimeError(f"make build failed: {made.stdout[-2000:]}{made.stderr[-2000:]}")
    return Artefact(folder, _runtime(target / "runtime"))


def _runtime(folder: Path) -> Path:
    """The runtime's packages, out of this environment, with their bytecode as in Lambda's."""
    for name in _RUNTIME:
        _link(name, folder)
    compileall.compile_dir(folder, quiet=2)
    return folder


def _link(name: str, folder: Path) -> None:
    packages = distribution(name)
    for file in packages.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            link = folder.joinpath(*file.parts)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(packages.locate_file(file))))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def zipped_size(folder: Path, archive: Path) -> int:
    """Bytes of the archive that `sam deploy` uploads."""
    return Path(shutil.make_archive(str(archive), "zip", folder)).stat().st_size
