"""`elmofire recipes`: the list, the text of one, and the page that shows both."""

import json
import sys
from pathlib import Path

import pytest

from elmofire.cli import main
from elmofire.train.recipes import find_recipe, recipe_file, recipe_names

PAGE = Path(__file__).parents[2] / "docs/reference/recipes.md"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command as a shell would: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["elmofire", "recipes", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own; this puts the old one back
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return run


def test_the_list_has_every_recipe_the_cheapest_first(run):
    code, listed, _ = run()
    names = [line.split()[0] for line in listed.splitlines()[1:]]
    assert code == 0
    assert sorted(names) == recipe_names()
    assert (names[0], names[-1]) == ("tiny", "cnn-big-lstm")
    paper = next(line for line in listed.splitlines() if line.startswith("original"))
    assert paper.split()[1:4] == ["93.6M", "500.7M", "7.69B"]
    assert max(map(len, listed.splitlines())) <= 120


def test_the_page_shows_the_list(run):
    listed = run()[1]
    assert f"```\n{listed}```" in PAGE.read_text(encoding="utf-8")


def test_programs_get_all_that_was_computed(run):
    found = {recipe["name"]: recipe for recipe in json.loads(run("--json")[1])["recipes"]}
    paper = found["original"]
    assert (paper["parameters"], paper["vocabulary"], paper["updates"]) == (93_600_848, 793_471, 1_000_845)
    each = paper["flops_per_token"]
    assert each["total"] == each["encoder"] + each["stacks"] + each["softmax"]
    assert paper["flops"] == pytest.approx(each["total"] * paper["tokens"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_printed_as_it_stands(run, name):
    code, text, _ = run(name)
    assert (code, text) == (0, recipe_file(name).read_text(encoding="utf-8"))


def test_a_recipe_is_an_object_for_programs(run):
    recipe = json.loads(run("original", "--json")[1])
    assert recipe["optimizer"]["rate"] == find_recipe("original").optimizer.rate
    assert recipe["model"]["encoder"]["filters"][-1] == [7, 1024]


def test_an_unknown_name_is_the_users_mistake(run):
    code, out, error = run("smal")
    assert (code, out) == (2, "")
    assert "did you mean small?" in error
