"""The built wheel, in an environment of its own without torch and outside the tree, does its job offline."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / ".wheels"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    built = tmp_path_factory.mktemp("dist")
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
            str(built),
            str(ROOT),
        ],
        check=True,
    )
    (path,) = built.glob("elmofire-*.whl")
    return path


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


def run(*command, cwd, text=None):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, input=text, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
        assert 'pip install "elmofire[torch]"' in run(python, "-c", program, cwd=tmp_path)
    program = "import elmofire\ntry:\n    elmofire.Embedder.load('random-small', device='cuda')\nexcept elmofire.MissingExtra as error:\n    print(error)"
    assert 'pip install "elmofire[torch]"' in run(python, "-c", program, cwd=tmp_path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "elmofire/py.typed" in names
    assert "elmofire/engine/definition.py" in names
    assert all(name.startswith(("elmofire/", "elmofire-")) for name in names)
