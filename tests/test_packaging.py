"""What is installed, packed and promised: the wheel, the sdist, the oldest versions, the commands of the CI."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from fineweb_stream import __version__

from .conftest import ROOT

IGNORED = shutil.ignore_patterns(
    ".git", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info", "*.bin"
)
PACKED = ["tokenizer/gpt2_merges.npy", "py.typed", "__main__.py", "inputs/parquet.py"]


def run(*command: object, cwd: Path) -> str:
    """Run a command without our PYTHONPATH; return what it prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    texts = [str(word) for word in command]
    done = subprocess.run(texts, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)
    assert done.returncode == 0, f"{texts}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that sees this one's packages, too, but after its own: what is installed in it wins."""
    folder = tmp_path_factory.mktemp("env")
    venv.EnvBuilder(with_pip=importlib.util.find_spec("pip") is None).create(folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(python, "-c", code, cwd=folder).strip())
    (own / "of_the_parent.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    return python


@pytest.fixture(scope="module")
def packages(fresh_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built from a copy with setuptools' own functions."""
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("wheel") is None:
        install = [fresh_python, "-m", "pip", "install", "-q", "--ignore-installed", "setuptools", "wheel"]
        if subprocess.run(install, capture_output=True, timeout=300).returncode:
            pytest.skip("setuptools and wheel are neither here nor can they be installed")
    source = tmp_path_factory.mktemp("source") / "repository"
    shutil.copytree(ROOT, source, ignore=IGNORED)
    out = tmp_path_factory.mktemp("dist")
    for what in ("wheel", "sdist"):
        code = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
        run(fresh_python, "-c", code, out, cwd=source)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def unpacked_sdist(packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(packages[1]) as archive:
        # Python 3.12 and 3.13 warn without one; 3.14 takes this one; early versions of 3.10 and 3.11 have none.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    (inner,) = folder.iterdir()
    return inner


@pytest.mark.slow
def test_wheel_has_the_package_and_nothing_else(packages: tuple[Path, Path]) -> None:
    """The wheel has all modules, the vocabulary, py.typed and the license; no tests."""
    names = zipfile.ZipFile(packages[0]).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fineweb_stream").rglob("*.py")}
    assert modules | {f"fineweb_stream/{name}" for name in PACKED} <= set(names)
    assert any(re.search(r"dist-info/(licenses/)?LICENSE$", name) for name in names)
    assert {name.split("/")[0] for name in names} == {"fineweb_stream", f"fineweb_stream-{__version__}.dist-info"}


@pytest.mark.slow
def test_sdist_has_what_a_checkout_has(unpacked_sdist: Path) -> None:
    """The sdist has the script, the tests with all they need, and the pages, byte for byte."""
    top = ["prepare.py", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "setup.cfg", "pyproject.toml"]
    names = {*top, *(f"fineweb_stream/{name}" for name in PACKED)}
    for folder, endings in (("tests", (".py", ".txt", ".md")), ("docs", (".md",))):
        names |= {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.suffix in endings}
    missing = {name for name in names if not (unpacked_sdist / name).exists()}
    assert not missing
    assert all((unpacked_sdist / name).read_bytes() == (ROOT / name).read_bytes() for name in names - {"setup.cfg"})


@pytest.mark.slow
def test_installed_wheel_works_anywhere(
    packages: tuple[Path, Path], unpacked_sdist: Path, fresh_python: Path, tmp_path: Path
) -> None:
    """With the wheel installed, the demo works anywhere, with a checkout's bytes; so do the sdist's tests."""
    # The other packages are those of the Python that runs this test, which may have another of ours: ignore it.
    options = ["-q", "--no-deps", "--no-index", "--ignore-installed"]
    run(fresh_python, "-m", "pip", "install", *options, packages[0], cwd=tmp_path)
    where = run(fresh_python, "-c", "import fineweb_stream; print(fineweb_stream.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(fresh_python.parent.parent)
    run(fresh_python, "-m", "fineweb_stream", "--demo", "--out", "module", cwd=tmp_path)
    code = "from fineweb_stream import prepare; print(prepare(demo=True, out='call', quiet=True).train_tokens)"
    n_tokens = int(run(fresh_python, "-c", code, cwd=tmp_path))
    run(fresh_python, ROOT / "prepare.py", "--demo", "--out", "script", cwd=tmp_path)
    made = [(tmp_path / name / "train.bin").read_bytes() for name in ("module", "call", "script")]
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 2 * n_tokens

    shutil.rmtree(unpacked_sdist / "fineweb_stream")  # so that the installed one is tested
    tests = [
        "test_vocab.py",
        "test_encoder.py::test_batches_of_any_shape_give_the_same_ids",
        "test_program.py::test_demo",
    ]
    options = ["-p", "no:cacheprovider", "-n", "0", *(f"tests/{name}" for name in tests)]
    assert " passed" in run(fresh_python, "-m", "pytest", *options, cwd=unpacked_sdist)


def test_oldest_versions_are_those_of_setup_cfg() -> None:
    """tests/oldest.txt has every package that setup.cfg names, at the lowest version that it allows."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = config["options"]["install_requires"] + "".join(config["options.extras_require"].values())
    lowest = dict(re.findall(r"^([\w-]+) >= ([\d.]+)(?:, != [\d.]+)?$", wanted, re.MULTILINE))
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE))
    assert len(lowest) >= 15
    assert pinned.keys() == lowest.keys()
    for name, version in pinned.items():
        assert re.fullmatch(re.escape(lowest[name]) + r"(\.0)*", version), name
    assert config["options"]["python_requires"] == ">=3.10"


def test_python_3_10_can_load_each_class() -> None:
    """A named tuple has no other base: Python 3.10 refuses one."""
    trees = [ast.parse(path.read_bytes()) for path in (ROOT / "fineweb_stream").rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(classes) > 50
    assert not [c.name for c in classes if len(c.bases) > 1 and "NamedTuple" in map(ast.unparse, c.bases)]


def test_threads_may_import_the_same_module() -> None:
    """What a function imports has a name of its own: `import a.b` may return before `a` has the attribute `b`."""
    trees = [ast.parse(path.read_bytes()) for path in (ROOT / "fineweb_stream").rglob("*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    imports = {node for function in functions for node in ast.walk(function) if isinstance(node, ast.Import)}
    names = [name for node in imports for name in node.names]
    assert len(names) > 30
    assert not [name.name for name in names if "." in name.name and not name.asname]


def test_workflow_runs_the_commands_of_the_readme() -> None:
    """The workflow is YAML: three systems, the oldest Python and the newest, and .ci/run, which reads the README."""
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["readme"]["strategy"]["matrix"]
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.10", "3.x"]
    assert [step["run"] for step in jobs["readme"]["steps"] if "run" in step] == ["bash .ci/run"]
    (commands,) = (step["run"] for step in jobs["oldest"]["steps"] if "run" in step)
    assert "-c tests/oldest.txt" in commands
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    in_shell = "\n".join(re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL))
    assert len(re.findall("^pip install ", in_shell, re.MULTILINE)) == 2
