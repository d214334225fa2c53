"""How updates are split to fit a GPU's memory, by figures that no GPU is asked for; and what is refused."""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from train.run import small_runs
from train.run.small_runs import RECIPES

from elmofire.errors import RecipeError
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.log import read_log
from elmofire.train.recipes import find_recipe
from elmofire.train.run import memory
from elmofire.train.run.memory import CONTEXT, Fit, fit_in_memory
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session
from elmofire.train.settings import DataSettings

CUDA, CELL = torch.device("cuda"), 1 << 20  # bytes
ALONE = Ranks(0, 1, CUDA)
GRAPH = memory._GRAPH
# 64 sentences of 40 steps, so parts of 16 are four at most; and 512 lanes.
SENTENCES = replace(
    RECIPES["sentences"],
    data=DataSettings(lengths=(40,)),
    train=replace(RECIPES["sentences"].train, batch_tokens=2560),
)
LANES = replace(SENTENCES, data=DataSettings(reading="lanes", steps=5))


@dataclass(frozen=True)
class AmongOthers(Ranks):
    """The first one, with others who say what they are made to say."""

    others: tuple = ()

    def gathered(self, value):
        return [value, *self.others]


@pytest.fixture
def free(monkeypatch):
    """Sets how much memory is free, of which a cell takes CELL bytes and nothing else but graphs takes any."""

    def bytes_of(loss, parameters, recipe, steps, rows, words, *, training=True):
        return CELL * steps * rows if training else 0

    def set_free(number):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int((CONTEXT + number) / 0.95) + 1, 1 << 40))

    monkeypatch.setattr(memory, "_bytes_of", bytes_of)
    for name in ("memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    return set_free


def opened(corpus, recipe, ranks):
    """Streams as a session opens them, by the number of parts."""
    bilm = SimpleNamespace(config=recipe.model)
    return partial(Session._open, SimpleNamespace(corpus=Corpus.open(corpus), recipe=recipe, ranks=ranks, bilm=bilm))


def fit(corpus, recipe, ranks=ALONE, before=None, **changes) -> Fit:
    recipe = replace(recipe, train=replace(recipe.train, **changes))
    nothing = torch.zeros(0)
    parameters = SimpleNamespace(weights=nothing, gradients=nothing)
    return fit_in_memory(None, parameters, recipe, ranks, opened(corpus, recipe, ranks), before)


def test_as_few_parts_as_fit_and_graphs_before_few_parts(corpus, free, monkeypatch):
    """Twice the parts with graphs come before the half without."""
    whole = 40 * 64 * CELL
    assert len(list(opened(corpus, SENTENCES, ALONE)(1).kinds())) == 1
    found = {}
    for graph in (whole // 64, whole):
        monkeypatch.setattr(memory, "_GRAPH", graph)
        for share in (2.0, 1.5, 1.3, 1.1, 0.9, 0.5, 0.26):
            free(int(share * whole))
            one = fit(corpus, SENTENCES)
            found[graph == whole, share] = (one.parts, one.graphs)
    assert [found[False, share] for share in (2.0, 1.1, 0.9, 0.5)] == [(1, True), (1, True), (2, True), (4, True)]
    assert found[False, 0.26] == (4, False)
    assert [found[True, share] for share in (2.0, 1.5, 1.3, 1.1)] == [(1, True), (2, True), (1, False), (1, False)]
    assert [found[True, share] for share in (0.9, 0.5, 0.26)] == [(2, False), (2, False), (4, False)]


def test_parts_that_would_be_filled_up_are_not_taken(corpus, free):
    free(40 * 64 * CELL // 4)
    streams = opened(corpus, SENTENCES, ALONE)
    assert [streams(parts).shapes() for parts in (1, 2, 4, 8)] == [[(40, 64)], [(40, 32)], [(40, 16)], [(40, 16)]]
    assert fit(corpus, SENTENCES).parts == 4
    free(40 * 64 * CELL // 4 - CELL)
    with pytest.raises(RecipeError, match=r"about 1.4 GB are needed, with updates in 4 parts, but there are 1.4 GB\n"):
        fit(corpus, SENTENCES)


@pytest.mark.parametrize(
    ("world", "tokens", "tried"),
    [
        (3, 2560, [1, 2]),
        (3, 10_240, [1, 2, 4, 8]),
        (8, 10_240, [1, 2]),
        (8, 40_960, [1, 2, 4, 8]),
    ],
)
def test_several_ranks_split_updates_too_as_far_as_parts_get_smaller(corpus, free, world, tokens, tried):
    """Also where ranks and parts do not divide the rows: the rest of a tile is empty."""
    recipe = replace(SENTENCES, train=replace(SENTENCES.train, batch_tokens=tokens))
    streams = opened(corpus, recipe, AmongOthers(0, world, CUDA))
    for parts in tried:
        ((steps, rows),) = streams(parts).shapes()
        free(steps * rows * CELL)
        assert fit(corpus, recipe, AmongOthers(0, world, CUDA)).parts == parts
        free(steps * rows * CELL - CELL)
    with pytest.raises(RecipeError, match=f"with updates in {tried[-1]} parts"):
        fit(corpus, recipe, AmongOthers(0, world, CUDA))


def test_how_much_is_computed_in_vain_is_known(corpus):
    streams = opened(corpus, SENTENCES, ALONE)
    assert [streams(parts).computed for parts in (1, 3, 4, 8, 64)] == [1, 96 / 64, 1, 2, 16]


@pytest.mark.parametrize(("parts", "told"), [(1, False), (7, True)])
def test_a_run_that_computes_much_in_vain_says_so(corpus, tmp_path, parts, told):
    """Of 8 rows, 7 parts have two each."""
    train = replace(RECIPES["sentences"].train, updates=1, accumulate=parts)
    small_runs.train(corpus, tmp_path, replace(RECIPES["sentences"], data=DataSettings(lengths=(12,)), train=train))
    notes = [record["text"] for record in read_log(tmp_path) if record["kind"] == "note"]
    said = "1.8 times the tokens of an update are computed, as 7 parts are filled up with empty rows"
    assert (said in notes) == told


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_more_parts_than_there_are_rows_for_are_refused(corpus, free, device):
    free(1 << 40)
    ranks = Ranks(0, 1, torch.device(device))
    assert fit(corpus, SENTENCES, ranks, accumulate=4).parts == 4
    assert fit(corpus, SENTENCES, ranks, accumulate=3).parts == 3  # which does not divide them
    assert fit(corpus, SENTENCES, ranks, accumulate=64).parts == 64
    said = "`train.accumulate` is 65, but an update has 64 sentences or lanes at most\nhint: fewer parts"
    with pytest.raises(RecipeError, match=said):
        fit(corpus, SENTENCES, ranks, accumulate=65)
    with pytest.raises(RecipeError, match=r"`train.accumulate` is 33 on each of 2 processes, but"):
        fit(corpus, SENTENCES, AmongOthers(0, 2, torch.device(device)), accumulate=33)


def test_a_run_that_cannot_be_split_so_is_refused_before_anything_is_written(corpus, tmp_path):
    recipe = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, accumulate=64))
    with pytest.raises(RecipeError, match=r"`train.accumulate` is 64, but an update has"):
        small_runs.train(corpus, tmp_path / "run", recipe)
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_all_ranks_take_the_most_parts_that_any_of_them_needs(corpus, free):
    free(1 << 40)
    fits = Fit(2, graphs=False, needed=5, limit=6)
    alone = fit(corpus, LANES, AmongOthers(0, 2, CUDA, (fits,)))
    assert (alone.parts, alone.graphs) == (2, False)
    assert alone.needed < fit(corpus, LANES, AmongOthers(0, 2, CUDA)).needed
    tight = replace(fits, parts=64, needed=int(7e9), limit=int(6e9))
    with pytest.raises(RecipeError, match=r"about 7.0 GB are needed, .* 64 parts, but there are 6.0 GB on rank 1\n"):
        fit(corpus, LANES, AmongOthers(0, 2, CUDA, (tight,)))


def test_ranks_of_a_run_make_no_graphs_and_none_are_counted(corpus, free):
    free(1 << 40)
    assert fit(corpus, LANES).graphs
    assert not fit(corpus, LANES, AmongOthers(0, 2, CUDA)).graphs
    assert not fit(corpus, LANES, AmongOthers(0, 2, CUDA), before={"parts": 2, "graphs": True}).graphs


def test_each_part_whose_state_is_carried_counts_as_a_graph(corpus, free):
    cells = 5 * 512 // 4
    for graphs in (4, 3):
        free(cells * CELL + graphs * GRAPH)
        assert fit(corpus, LANES, accumulate=4).graphs == (graphs == 4)
    stream = opened(corpus, replace(SENTENCES, data=DataSettings(lengths=(8, 12))), ALONE)(2)
    keys = set()  # as the stepper tells graphs apart
    for update in stream.kinds():
        for number, batch in enumerate(update.parts):
            keys.add((batch.kind, number if batch.carried or batch.kept else 0))
    assert stream.number_of_ways == len(keys) > len({kind for kind, _ in keys})


def test_a_run_goes_on_as_it_was_or_is_told_that_it_cannot(corpus, free):
    free(5 * 512 // 2 * CELL + 2 * GRAPH)
    before = {"parts": 2, "graphs": True}
    found = fit(corpus, LANES, before=before)
    assert (found.parts, found.graphs) == (2, True)
    free(5 * 512 // 2 * CELL - 200 * CELL)
    said = r"are needed to go on with the run as it was started, with updates in 2 parts, but there are .* GB\nhint: go on where"
    with pytest.raises(RecipeError, match=said):
        fit(corpus, LANES, before=before)


def test_a_limit_to_memory_is_refused_where_none_is_kept(corpus, tmp_path):
    recipe = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, memory_gb=8.0))
    with pytest.raises(RecipeError, match=r"`train.memory_gb` is 8, but only on a GPU .*\nhint: train.memory_gb=none"):
        small_runs.train(corpus, tmp_path / "run", recipe)


def test_kims_lanes_are_twenty_on_a_gpu_too(corpus):
    for device in ("cpu", "cuda"):
        ranks = Ranks(0, 1, torch.device(device))
        assert opened(corpus, find_recipe("kim2016"), ranks)(1).shapes() == [(35, 20)]
        assert opened(corpus, find_recipe("kim2016"), ranks)(2).shapes() == [(35, 10)]
        assert opened(corpus, find_recipe("en-small"), ranks)(1).shapes() == [(40, 512)]
