"""The built wheel, alone: its exact files, and a smoke run in an environment that has never seen the sources."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

import ortlens

# Builds a wheel and fills a fresh environment.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE", ".gitignore")
DIST_INFO = f"ortlens-{ortlens.__version__}.dist-info"


def package_files() -> list[str]:
    """The files that belong in the wheel: what git tracks under ortlens/, or what lies there when this is no checkout."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        listed = subprocess.run([git, "ls-files", "-z", "--", "ortlens"], cwd=ROOT, capture_output=True, text=True, check=True)
        return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())
    found = [path for path in (ROOT / "ortlens").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def built(source: Path, out: Path) -> Path:
    """The wheel, built from a copy of the tracked files that is gone by the time a test looks."""
    for name in (*package_files(), *BUILD_FILES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    # No isolation: the build needs hatchling only, which is here, and must not go to the network in a test.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(source)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel."""
    return built(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))


def test_two_builds_are_equal(wheel: Path, tmp_path: Path) -> None:
    """Of files that were written at another time, with another mask of modes."""
    before = os.umask(0o077)
    try:
        again = built(tmp_path / "source", tmp_path / "dist")
    finally:
        os.umask(before)
    assert again.read_bytes() == wheel.read_bytes()


def installed_alone(wheel: Path, folder: Path) -> Path:
    """A fresh virtual environment with the wheel in it and nothing else; the path of its site-packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (site_packages,) = folder.glob("lib/python*/site-packages")
    return site_packages


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel in it, that borrows every other package from the running one.

    The borrowed folder is named in a .pth file: its own .pth files are then not read, so the checkout that is installed
    in it for development cannot be seen from here.
    """
    folder = tmp_path_factory.mktemp("clean")
    site_packages = installed_alone(wheel, folder)
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


def needed_by(name: str) -> set[str]:
    """A distribution and everything that it requires here, extras and other platforms apart."""
    required = [item for item in metadata.requires(name) or () if not re.search(r";.*(extra|sys_platform) ==", item)]
    names = {re.split(r"[<>=!~;\[ ]", item, maxsplit=1)[0] for item in required}
    return {name}.union(*map(needed_by, names))


@pytest.fixture(scope="module")
def reader(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment as `pip install jinja2 numpy pandas` and `pip install --no-deps ortlens` leave it."""
    folder = tmp_path_factory.mktemp("reader")
    site_packages = installed_alone(wheel, folder)
    for name in needed_by("jinja2") | needed_by("pandas"):
        for entry in {file.parts[0] for file in metadata.files(name) or ()} - {"..", "__pycache__"}:
            (site_packages / entry).symlink_to(Path(sysconfig.get_path("purelib")) / entry)
    return folder


@pytest.fixture
def run_clean(clean: Path, run_python: Callable[..., str]) -> Callable[..., str]:
    """Run a program in the clean environment and return what it prints."""

    def run(program: str, *args: str) -> str:
        return run_python(program, *args, executable=str(clean / "bin" / "python"))

    return run


def test_the_wheel_holds_exactly_the_files_that_are_meant_to_ship(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = sorted(archive.namelist())
    about = [f"{DIST_INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")]
    assert inside == sorted([*package_files(), *about])
    assert wheel.name == f"ortlens-{ortlens.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 2_000_000
    files = package_files()
    assert {"ortlens/__init__.py", "ortlens/py.typed", "ortlens/errors.py", "ortlens/trace/records.py"} <= set(files)
    assert [name for name in files if Path(name).suffix not in {".py", ".typed", ".js", ".css", ".html", ".json", ".txt"}] == []


def test_it_is_the_wheel_that_is_imported_with_every_public_name(clean: Path, run_clean: Callable[..., str]) -> None:
    program = f"""
import sys, ortlens
print(ortlens.__file__, {str(ROOT)!r} in sys.path, [name for name in ortlens.__all__ if not hasattr(ortlens, name)])
"""
    where, *others = run_clean(program).split()
    assert Path(where).is_relative_to(clean)
    assert others == ["False", "[]"]
    done = subprocess.run([str(clean / "bin" / "ortlens"), "--version"], capture_output=True, text=True, check=True, timeout=120)
    assert ortlens.__version__ in done.stdout


def test_torch_finds_the_backend_by_its_names(run_clean: Callable[..., str]) -> None:
    program = """
import sys, torch
assert "ortlens" not in sys.modules
x = torch.randn(3, 4)
for name in ("onnxrt", "ortlens"):
    fast = torch.compile(lambda x: x.sin(), backend=name)
    torch.testing.assert_close(fast(x), x.sin())
    torch.compiler.reset()
import ortlens
print(sum(backend.execution_count for backend in ortlens.OrtBackend.get_cached_instances()))
"""
    assert int(run_clean(program).split()[-1]) >= 2


def test_a_capture_is_read_where_nothing_but_pandas_and_jinja2_are_installed(reader: Path, run_python: Callable[..., str]) -> None:
    capture = next((ROOT / "tests").rglob("bert.ortlens"))
    program = """
import importlib.util, sys
import ortlens
print([name for name in ("torch", "onnx", "onnxruntime", "IPython", "ipywidgets", "tqdm") if importlib.util.find_spec(name)])
lens = ortlens.load(sys.argv[1])
print(len(lens.graphs), len(lens.nodes) > 100)
print(lens.summary())
"""
    others, counts, summary = run_python(program, str(capture), executable=str(reader / "bin" / "python")).split("\n", 2)
    assert (others, counts) == ("[]", "1 True")
    assert "In ONNX Runtime" in summary


def test_the_command_shows_and_reports_a_capture_where_nothing_but_pandas_and_jinja2_are_installed(reader: Path, tmp_path: Path) -> None:
    capture = next((ROOT / "tests").rglob("bert.ortlens"))
    for arguments in (("show", str(capture)), ("report", str(capture), "-o", "run.html")):
        command = [str(reader / "bin" / "ortlens"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "<strong>Kernels of the newest graphs" in page
