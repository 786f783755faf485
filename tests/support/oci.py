"""The worker's image as OCI describes one, made and checked without Docker.

`write` makes an image layout of what the Dockerfile copies into its last stage, with the
configuration that this stage gives: without the base image, in which only a user gets a name.
`faults` says what is wrong with an image.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.image import stages

Json = dict[str, Any]

ARCHITECTURE: Final = "arm64"
_ELF_AARCH64: Final = 183
"""`e_machine` of the ELF header."""

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, kw_only=True)
class Image:
    """What an image layout holds."""

    platform: Json
    """As its index names it."""
    config: Json
    files: Mapping[str, tarfile.TarInfo]
    """The entries of its layers by their paths, without the slash at the beginning."""
    contents: Mapping[str, bytes]
    """The bytes of its files."""

    @property
    def packages(self) -> set[str]:
        """The packages that are installed under /site, by their names."""
        found = (re.match(r"site/([^/]+)-[^/-]+\.dist-info/METADATA$", path) for path in self.files)
        return {re.sub("[._]", "-", match[1].lower()) for match in found if match}


def configuration(context: Path) -> Json:
    """The configuration that the last stage of the Dockerfile gives to its containers."""
    made: Json = {"Env": []}
    for name, words in stages(context)[-1]:
        match name:
            case "ENV":
                made["Env"] += words.split()
            case "USER":
                made["User"] = words
            case "WORKDIR":
                made["WorkingDir"] = words
            case "VOLUME":
                made["Volumes"] = {path: {} for path in words.split()}
            case "STOPSIGNAL":
                made["StopSignal"] = words
            case "ENTRYPOINT" | "CMD":  # a line without brackets would be run by a shell
                is_list = words.startswith("[")
                made[name.capitalize()] = json.loads(words) if is_list else ["/bin/sh", "-c", words]
            case "COPY" | "RUN":
                pass
            case other:
                raise NotImplementedError(other)
    return made


def copied(context: Path) -> list[str]:
    """The folders that the last stage takes from the build stage; each keeps its name."""
    copies = [words.split() for name, words in stages(context)[-1] if name == "COPY"]
    assert all(len(words) == 3 and words[0] == "--from=build" for words in copies), copies
    assert all(source == target for _, source, target in copies), copies
    return [target for _, _, target in copies]


def write(context: Path, root: Path, folder: Path) -> None:
    """Write the image layout of the build stage in `root` to `folder`, one layer for each COPY."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = [_tar(root, name.strip("/")) for name in copied(context)]
    config = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": configuration(context),
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    packed = [gzip.compress(layer, compresslevel=1, mtime=0) for layer in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(blobs, _CONFIG, json.dumps(config).encode()),
        "layers": [_blob(blobs, _LAYER, layer) for layer in packed],
    }
    named = _blob(blobs, _MANIFEST, json.dumps(manifest).encode())
    named["platform"] = {"architecture": ARCHITECTURE, "os": "linux"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def read(folder: Path) -> Image:
    """Read an image layout."""
    (named,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = json.loads(_read(folder, named))
    files, contents = dict[str, tarfile.TarInfo](), dict[str, bytes]()
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(_read(folder, layer)))) as archive:
            for entry in archive:
                files[entry.name] = entry
                if (file := archive.extractfile(entry)) is not None:
                    contents[entry.name] = file.read()
    config = json.loads(_read(folder, manifest["config"]))
    return Image(platform=named["platform"], config=config, files=files, contents=contents)


def faults(image: Image, context: Path) -> list[str]:
    """What is wrong with an image, a clause each; which packages it needs is not known here."""
    return [*_faults_of_config(image, context), *_faults_of_files(image)]


def _faults_of_config(image: Image, context: Path) -> list[str]:
    config, found = image.config["config"], list[str]()
    platform = {"architecture": ARCHITECTURE, "os": "linux"}
    if image.platform != platform or {n: image.config[n] for n in platform} != platform:
        found.append(f"it is not for {ARCHITECTURE}")
    if config != configuration(context):
        found.append("its configuration is not the Dockerfile's")
    user, _, _ = config.get("User", "").partition(":")
    if not user.isdigit() or int(user) == 0:
        found.append("its user is root, or has no number by which that can be told")
    if config.get("Entrypoint", [""])[0] != "python":
        found.append("its first process is not the worker, and gets no signal")
    if config.get("StopSignal") != "SIGTERM":
        found.append("it is not stopped by SIGTERM")
    if "/tmp" not in config.get("Volumes", {}):  # noqa: S108
        found.append("with a root file system that is read-only it can write no temporary files")
    needed = [*_started(config), *(f"{part}/" for part in _path(config))]
    found += [f"/{path} is not there" for path in needed if not _has(image, path)]
    return found


def _started(config: Json) -> list[str]:
    """The files that a container starts: the command's module and the agent."""
    words = config.get("Entrypoint", [])
    module = words[words.index("-m") + 1].replace(".", "/") if "-m" in words else "?"
    agent = words[words.index("--agent") + 1] if "--agent" in words else "?"
    return [f"site/{module}/__main__.py", agent.partition(":")[0].strip("/")]


def _path(config: Json) -> list[str]:
    variables = dict(one.partition("=")[::2] for one in config["Env"])
    return [folder.strip("/") for folder in variables.get("PYTHONPATH", "?").split(":")]


def _has(image: Image, path: str) -> bool:
    if path.endswith("/"):
        return any(name.startswith(path) for name in image.files)
    return path in image.contents


def _faults_of_files(image: Image) -> list[str]:
    found = list[str]()
    for path, entry in image.files.items():
        name = path.rpartition("/")[2]
        if not path.startswith(("site/", "app/")) and path not in {"site", "app"}:
            found.append(f"/{path} is not of the layer")
        if not (entry.isfile() or entry.isdir()):
            found.append(f"/{path} is no plain file")
        if (entry.uid, entry.gid) != (0, 0) or entry.mode & 0o6022:
            found.append(f"/{path} can be changed by the worker")
        content = image.contents.get(path, b"")
        if name == ".env" or (name.endswith((".pem", ".key")) and b" PRIVATE KEY-" in content):
            found.append(f"/{path} holds a secret")
        if content[:4] == b"\x7fELF" and int.from_bytes(content[18:20], "little") != _ELF_AARCH64:
            found.append(f"/{path} is of another architecture")
    return found


def _tar(root: Path, name: str) -> bytes:
    """A folder as a layer: all of it is root's, and the same in each build."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(root / name, arcname=name, recursive=False, filter=owned)
        for path in sorted((root / name).rglob("*")):
            place = path.relative_to(root).as_posix()
            archive.add(path, arcname=place, recursive=False, filter=owned)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(blobs: Path, media_type: str, content: bytes) -> Json:
    """Store a blob; return its descriptor."""
    digest = _digest(content)
    (blobs / digest.removeprefix("sha256:")).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _read(folder: Path, descriptor: Json) -> bytes:
    content: bytes = (folder / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    return content
