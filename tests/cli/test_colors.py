"""Colors: in a terminal, unless NO_COLOR is set to something (https://no-color.org)."""

import os
import pty
import subprocess
import sys

import pytest
from models import lively, tiny

from elmofire import save_weights

ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    save_weights(lively(tiny()), folder)
    return folder


def in_a_terminal(*arguments, cwd, **environment) -> str:
    """All that the command writes to a terminal."""
    mine, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "elmofire", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**inherited, **environment},
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(mine):
        seen += chunk
    process.wait()
    os.close(mine)
    return seen.decode()


def _read(descriptor) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


COMMANDS = {
    "info": ["info", "MODEL"],
    "bench": ["bench", "embed", "-m", "MODEL", "--engine", "numpy", "--sentences", "0", "--singles", "2", "-q"],
    "demo": ["demo", "--model", "MODEL"],
    "models": ["models", "--language", "en"],
    "recipes": ["recipes"],
    "an error": ["info", "no-such-model"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_colors_are_shown_unless_they_are_unwanted(model, tmp_path, arguments):
    command = [model if part == "MODEL" else part for part in arguments]
    assert ESCAPE in in_a_terminal(*command, cwd=tmp_path)
    assert ESCAPE in in_a_terminal(*command, cwd=tmp_path, NO_COLOR="")
    assert ESCAPE not in in_a_terminal(*command, cwd=tmp_path, NO_COLOR="1")
