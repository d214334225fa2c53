"""`elmofire recipes`: the list, the text of one, and the page that shows both."""

import json
from pathlib import Path

import pytest

from elmofire.train.recipes import find_recipe, recipe_file, recipe_names

PAGE = Path(__file__).parents[2] / "docs/reference/recipes.md"


def test_the_list_has_every_recipe_the_cheapest_first(run):
    code, listed, _ = run("recipes")
    names = [line.split()[0] for line in listed.splitlines()[1:]]
    assert code == 0
    assert sorted(names) == recipe_names()
    assert (names[0], names[-1]) == ("tiny", "cnn-big-lstm")
    paper = next(line for line in listed.splitlines() if line.startswith("original"))
    assert paper.split()[1:4] == ["93.6M", "500.7M", "7.69B"]
    assert max(map(len, listed.splitlines())) <= 120


def test_the_page_shows_the_list(run):
    listed = run("recipes")[1]
    assert f"```\n{listed}```" in PAGE.read_text(encoding="utf-8")


def test_programs_get_all_that_was_computed(run):
    found = {recipe["name"]: recipe for recipe in json.loads(run("recipes", "--json")[1])["recipes"]}
    paper = found["original"]
    assert (paper["parameters"], paper["vocabulary"], paper["updates"]) == (93_600_848, 793_471, 1_000_845)
    each = paper["flops_per_token"]
    assert each["total"] == each["encoder"] + each["stacks"] + each["softmax"]
    assert paper["flops"] == pytest.approx(each["total"] * paper["tokens"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_printed_as_it_stands(run, name):
    code, text, _ = run("recipes", name)
    assert (code, text) == (0, recipe_file(name).read_text(encoding="utf-8"))


def test_a_recipe_is_an_object_for_programs(run):
    recipe = json.loads(run("recipes", "original", "--json")[1])
    assert recipe["optimizer"]["rate"] == find_recipe("original").optimizer.rate
    assert recipe["model"]["encoder"]["filters"][-1] == [7, 1024]


def test_an_unknown_name_is_the_users_mistake(run):
    code, out, error = run("recipes", "smal")
    assert (code, out) == (2, "")
    assert "did you mean small?" in error
