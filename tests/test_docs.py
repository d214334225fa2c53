"""The README's commands run as they stand, its links lead somewhere, and tables are those of the records."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import elmofire

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readmes_commands_run(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    commands = [block for block in blocks if "elmofire " in block]
    assert commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in commands:
        done = subprocess.run(
            ["bash", "-e", "-c", block], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "vectors.hdf5").is_file()


def test_the_readmes_test_command_is_what_is_run_here():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nmake test\n" in readme
    assert "make test" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page):
    text = re.sub(
        r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )  # calls in code look alike
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_index_lists_every_page():
    index = ROOT / "docs/README.md"
    listed = re.findall(r"\]\(([^)#]+)\)", index.read_text(encoding="utf-8"))
    pages = {
        page.relative_to(index.parent).as_posix() for page in PAGES if index.parent in page.parents and page != index
    }
    assert pages <= {*listed}
    assert len(listed) == len({*listed})


def test_the_python_page_tells_every_public_name():
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    missing = [name for name in elmofire.__all__ if not re.search(rf"`{name}\b", page)]
    assert not missing


def test_tables_are_made_from_the_records():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
