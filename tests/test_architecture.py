"""Imports point one way, help is instant, and no file is a drawer."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import elmofire

SOURCE = Path(elmofire.__file__).parent

# Each may import from those before it; the last row but one does not know each other.
ORDER = [
    "errors",
    "recipe",
    "terminal",
    "text",
    "formats",
    "engine",
    "kernels",
    "model",
    "embed",
    "lm",
    "train",
    "tasks",
    "analysis",
]
LEAVES = ["compat", "integrations", "serve", "scale", "bench"]
WITHOUT_TORCH = {"errors", "recipe", "terminal", "text", "formats", "engine"}


def may_import(room: str) -> set[str]:
    if room == "cli":
        return {*ORDER, *LEAVES, "cli"}
    if room in LEAVES:
        return {*ORDER, room}
    return {*ORDER[: ORDER.index(room) + 1], *({"recipe", "errors"} if room == "errors" else set())}


def imports(file: Path) -> set[str]:
    """Absolute names of all modules a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = [
    file
    for file in sorted(SOURCE.rglob("*.py"))
    if file.parent != SOURCE or file.stem in ("errors", "recipe", "terminal")
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_to_the_left(file):
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    wrong = {
        name
        for name in imports(file)
        if name.startswith("elmofire.") and name.split(".")[1] not in may_import(room) | {"__version__"}
    }
    assert not wrong, f"{file.relative_to(SOURCE)} imports {', '.join(sorted(wrong))}"
    if room in WITHOUT_TORCH:
        assert not any(name.split(".")[0] == "torch" for name in imports(file)), f"{room} must not know torch"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_can_be_held_in_the_head(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
    assert file.stem not in ("utils", "util", "helpers", "common", "misc", "base")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_pattern_has_a_possessive_or_atomic_group(file):
    """Python 3.11.0 to 3.11.4, Debian 12's among them, match such groups wrongly, and drop punctuation without a word."""
    texts = [node.value for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)]  # fmt: skip
    found = [text for text in texts if isinstance(text, str) and re.search(r"\)(?:[*+?]|\{[\d,]*\})\+|\(\?>", text)]
    assert found == []


def test_the_definition_imports_nothing_but_numpy():
    assert imports(SOURCE / "engine/definition.py") == {"numpy"}


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import elmofire", ["torch", "numpy", "h5py", "click"]),
        ("import sys; sys.argv = ['elmofire', '--help']; import elmofire.__main__", ["torch", "numpy", "h5py"]),
        (
            "import sys; sys.argv = ['elmofire', 'embed', '--help']; import elmofire.__main__",
            ["torch", "numpy", "h5py"],
        ),
        (
            "from elmofire import Embedder; Embedder.load('random-small', device='auto').embed(['One sentence.'])",
            ["torch", "h5py"],
        ),
    ],
    ids=["import", "help", "help of a command", "embed"],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(program, absent):
    check = f"try:\n    {program}\nexcept SystemExit:\n    pass\nimport sys; print([name for name in {absent} if name in sys.modules], file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"


def test_every_public_name_is_there_and_says_what_it_is():
    for name in elmofire.__all__:
        assert getattr(elmofire, name).__doc__, name
    assert sorted(elmofire.__all__) == sorted(elmofire._HOMES)
    modules = {path.stem for path in SOURCE.iterdir()}
    assert not modules & {*elmofire.__all__}  # a module that is imported would take the place of what has its name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        elmofire.nonsense  # noqa: B018
