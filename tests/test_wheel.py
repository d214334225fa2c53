"""The built wheel, in an environment of its own without torch and outside the tree, does its job offline."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from elmofire.engine.compiled import build, library

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / ".wheels"


def build_wheel(folder: Path, **environment: str) -> Path:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-w",
            str(folder),
            str(ROOT),
        ],
        check=True,
        env={**os.environ, **environment},
    )
    (path,) = folder.glob("elmofire-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    if not (WHEELS / "base.stamp").is_file():
        pytest.skip("the base wheels are not in .wheels; `make test` fetches them once")
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELS), str(wheel)],
        check=True,
        env={"PATH": os.environ["PATH"]},  # no other source of packages, wherever pip is told to look
    )
    return python


def finished(*command, cwd, text=None, **environment):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def run(*command, cwd, text=None):
    return finished(*command, cwd=cwd, text=text).stdout


def test_it_embeds_from_python_without_torch(python, tmp_path):
    program = (
        "import elmofire, sys; elmo = elmofire.Embedder.load('random-small'); "
        "vectors = elmo.embed([['Stick', 'to', 'the', 'plan']]); "
        "print(vectors[0].shape, 'torch' in sys.modules, 'site-packages' in elmofire.__file__)"
    )
    assert run(python, "-c", program, cwd=tmp_path).strip() == "(4, 256) False True"


def test_it_embeds_from_the_shell_without_torch(python, tmp_path):
    script = python.parent / "elmofire"
    run(
        script,
        "embed",
        "--model",
        "random-small",
        "--output",
        "vectors.hdf5",
        cwd=tmp_path,
        text="Stick to the plan.\n",
    )
    shape = run(python, "-c", "import elmofire; print(elmofire.open_embeddings('vectors.hdf5')[0].shape)", cwd=tmp_path)
    assert shape.strip() == "(5, 256)"
    assert json.loads(run(script, "info", "random-small", "--json", cwd=tmp_path))["here"]["torch"] is None


def test_what_needs_torch_says_so(python, tmp_path):
    for name in ("Elmo", "BiLM", "ScalarMix"):
        program = (
            f"import elmofire\ntry:\n    elmofire.{name}\nexcept elmofire.MissingExtra as error:\n    print(error)"
        )
        assert 'pip install ".[torch]"' in run(python, "-c", program, cwd=tmp_path)
    for name in ("elmofire.tasks.ner", "elmofire.tasks.features", "elmofire.analysis.probe"):
        program = f"import elmofire\ntry:\n    import {name}\nexcept elmofire.MissingExtra as error:\n    print(error)"
        assert 'pip install ".[torch]"' in run(python, "-c", program, cwd=tmp_path)
    program = "import elmofire\ntry:\n    elmofire.Embedder.load('random-small', device='cuda')\nexcept elmofire.MissingExtra as error:\n    print(error)"
    assert 'pip install ".[torch]"' in run(python, "-c", program, cwd=tmp_path)


def test_all_names_that_need_no_torch_are_imported_at_once(python, tmp_path):
    program = "from elmofire import *; print(Embedder.__name__, 'Elmo' in globals(), 'BiLM' in globals())"
    assert run(python, "-c", program, cwd=tmp_path).strip() == "Embedder False False"


def test_the_example_says_what_to_install(python, tmp_path):
    example = [str(python), str(ROOT / "examples/tagger.py"), "--help"]
    done = subprocess.run(example, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == 'This example needs torch: pip install ".[torch]" in a checkout of elmofire\n'


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "elmofire/py.typed" in names
    assert "elmofire/engine/definition.py" in names
    assert "elmofire/recipes/tiny.toml" in names
    assert all(name.startswith(("elmofire/", "elmofire-")) for name in names)


def libraries_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {Path(name).name for name in archive.namelist() if "libelmofire" in name}


@pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")
def test_the_installed_wheel_uses_the_kernels_it_was_built_with(wheel, python, tmp_path):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    assert libraries_in(wheel) == {build.library_file(Path(), name).name for name in build.instruction_sets()}
    program = (
        "from elmofire.engine.compiled import library; best = library.load(); "
        "print(*library.available()); print(best.name, 'site-packages' in best.handle._name)"
    )
    done = finished(python, "-c", program, cwd=tmp_path, CC="no-such-compiler")
    assert done.stdout.splitlines() == [" ".join(library.available()), f"{library.available()[0]} True"]
    assert not done.stderr


def test_without_a_compiler_the_wheel_is_plain_and_says_once_that_numpy_is_used(python, tmp_path):
    plain = build_wheel(tmp_path, CC="false")
    assert plain.name.endswith("-py3-none-any.whl")
    assert not libraries_in(plain)
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", "plain", plain, cwd=tmp_path)
    program = (
        "import elmofire; elmo = elmofire.Embedder.load('random-small'); again = elmofire.Embedder.load('random-small'); "
        "print(elmofire.__file__, again.embed([['Stick', 'to', 'the', 'plan']])[0].shape)"
    )
    done = finished(python, "-c", program, cwd=tmp_path, PYTHONPATH=str(tmp_path / "plain"))
    assert done.stdout == f"{tmp_path / 'plain/elmofire/__init__.py'} (4, 256)\n"
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("elmofire: no compiled kernels, using numpy")
    assert "libelmofire_portable" in done.stderr
