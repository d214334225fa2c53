"""How the commands' tests run them."""

import sys

import pytest

from elmofire.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command as a shell would: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["elmofire", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own; this puts the old one back
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return run
