"""The committed bundles of the explorer: small, licensed, and what the sources make."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRONTEND = ROOT / "frontend"
STATIC = ROOT / "ortlens" / "views" / "static"
WIDGET_BYTES = 150_000
NODE = shutil.which("node")
needs_packages = pytest.mark.skipif(
    NODE is None or not (FRONTEND / "node_modules").is_dir(), reason="needs `npm ci` in frontend/, for those who change the front end"
)


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert NODE is not None
    return subprocess.run([NODE, *arguments], cwd=FRONTEND, capture_output=True, text=True, check=False, timeout=120)


def test_the_widget_is_small_and_the_bundles_load_nothing() -> None:
    assert len(gzip.compress((STATIC / "explorer.widget.js").read_bytes(), mtime=0)) <= WIDGET_BYTES
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "sourceMappingURL" not in text
        assert "url(" not in text or path.suffix != ".css"
        assert "fetch(" not in text


def test_the_lock_file_pins_by_digest_and_names_no_host() -> None:
    lock = json.loads((FRONTEND / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: about for name, about in lock["packages"].items() if name}
    assert packages
    assert all("integrity" in about and "resolved" not in about for about in packages.values())


@needs_packages
def test_the_bundles_are_what_the_sources_make(tmp_path: Path) -> None:
    done = node("build.mjs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(made) == sorted(path.name for path in STATIC.iterdir())
    changed = [name for name, data in made.items() if data != (STATIC / name).read_bytes()]
    assert changed == [], "run `npm run build` in frontend/ and commit what it writes"


@needs_packages
def test_every_bundled_package_has_its_licence_in_the_wheel() -> None:
    declared = json.loads((FRONTEND / "package.json").read_text(encoding="utf-8"))["dependencies"]
    told = (STATIC / "THIRD_PARTY_LICENSES.txt").read_text(encoding="utf-8")
    assert declared
    for name, version in declared.items():
        assert f"{name} {version} (" in told
    assert "Permission is hereby granted" in told


@needs_packages
def test_the_core_passes_its_own_tests() -> None:
    done = node("--test")
    assert done.returncode == 0, done.stdout[-4000:]
