"""The door: a corpus and a recipe become a stream of updates."""

from collections.abc import Iterator
from typing import Any

from elmofire.errors import InputError
from elmofire.train.corpus.reader import Corpus, Split
from elmofire.train.settings import Recipe
from elmofire.train.stream.batch import Batch, Kind, Update
from elmofire.train.stream.building import Builder, Plan
from elmofire.train.stream.lanes import Lanes
from elmofire.train.stream.negatives import draw_negatives
from elmofire.train.stream.reading import Reading
from elmofire.train.stream.sentences import Sentences
from elmofire.train.stream.text import Text

# Rows of the smallest tile of the GPU's kernels: parts of sentences are filled up to it where rows are rounded at all.
TILE = 16


def open_stream(
    corpus: Corpus,
    recipe: Recipe,
    *,
    directions: int,
    rank: int = 0,
    world: int = 1,
    parts: int = 1,
    row_multiple: int = 1,
    split: Split | None = None,
) -> "Stream":
    """Updates of a corpus's training text, or of another split, as this rank of a `world` of them sees them, each split into `parts`.

    The rows of an update are a multiple of `row_multiple`; where that would be more tokens than wanted, of a smaller one, and lanes are
    then as many as is wanted. Ranks and parts share them evenly and change nothing about them: rows that fill up a part are empty. One
    direction is the forward one.
    """
    if not 0 <= rank < world:
        raise InputError(f"there is no rank {rank} among {world}")
    if directions not in (1, 2):
        raise InputError(f"a model has one direction or two, not {directions}")
    return Stream(corpus, recipe, directions, rank, world, parts, row_multiple, split or corpus.train)


class Stream:
    """Updates as a function of the position; `plans` are cheap and in order, `build` makes an update of each, in any thread."""

    def __init__(
        self,
        corpus: Corpus,
        recipe: Recipe,
        directions: int,
        rank: int,
        world: int,
        parts: int,
        row_multiple: int,
        split: Split,
    ) -> None:
        self._text = Text(corpus, split)
        reading = Sentences if recipe.data.reading == "sentences" else Lanes
        seed, tokens = recipe.train.seed, recipe.train.batch_tokens
        self._tile = min(row_multiple, TILE) if reading is Sentences else 1
        self._reading: Reading = reading(self._text, recipe.data, seed, directions, tokens, row_multiple, self._tile)
        self._builder = Builder(corpus, self._text, resets=reading is Lanes and recipe.data.reset)
        self._rank, self._world, self._parts = rank, world, parts
        self._seed = seed
        self._vocabulary = len(corpus.vocabulary)
        self._samples = min(recipe.loss.samples, self._vocabulary) if recipe.loss.softmax == "sampled" else 0
        self.updates_per_epoch: int = self._reading.updates_per_epoch
        self.tokens_per_epoch: int = int(self._text.steps.sum())  # to predict, in one direction

    def shapes(self) -> list[tuple[int, int]]:
        """All (steps, rows) that the parts of updates have, the most frequent first."""
        return [(steps, self._rows_of_a_part(rows)) for steps, rows in self._reading.shapes()]

    @property
    def computed(self) -> float:
        """Times the rows of updates that ranks and parts run in all, since parts are filled up; over all shapes."""
        rows = dict(self._reading.shapes())
        shares = self._world * self._parts
        return sum(steps * shares * own for steps, own in self.shapes()) / sum(
            steps * all_ for steps, all_ in rows.items()
        )

    @property
    def most_rows(self) -> int:
        """Of an update, all ranks and parts."""
        return max(rows for _, rows in self._reading.shapes())

    @property
    def carried_rows(self) -> int:
        """Of a part, at most, where the next update goes on with its state."""
        return self._rows_of_a_part(self._reading.carried_rows)

    def updates(self, position: dict[str, Any] | None = None) -> Iterator[Update]:
        """Updates from the start, or after the one that has this position, without end."""
        return map(self.build, self.plans(position))

    def plans(self, position: dict[str, Any] | None = None) -> Iterator[Plan]:
        """What the updates will hold, one after the other."""
        return self._reading.plans(position)

    def build(self, plan: Plan) -> Update:
        """The update of a plan."""
        negatives = [
            draw_negatives(self._vocabulary, self._samples, self._seed, plan.number, direction)
            for direction in range(len(plan.segments) if self._samples else 0)
        ]
        tokens = tuple(int(segments.counts.sum()) for segments in plan.segments)
        return Update(plan.number, self._batches(plan), tokens, negatives, plan.epoch, plan.position)

    def kinds(self) -> Iterator[Update]:
        """One update of every shape that will come, with a state that is carried and without."""
        return map(self.build, self._reading.kinds())

    @property
    def number_of_ways(self) -> int:
        """In which batches run: one of each kind, but of those that go on from a state or leave one, each part has its own."""
        return sum(self._parts if plan.carried or plan.kept else 1 for plan in self._reading.kinds())

    def most_words(self, sample: int = 400) -> dict[Kind, int]:
        """How many distinct words the batches of each kind have at most, among about `sample` updates; others may have more."""
        most: dict[Kind, int] = {}
        for plan in self._reading.sample(sample):
            for batch in self._batches(plan):
                most[batch.kind] = max(most.get(batch.kind, 0), len(batch.words))
        return most

    def _batches(self, plan: Plan) -> list[Batch]:
        shares, rows = self._world * self._parts, self._rows_of_a_part(plan.rows)
        mine = range(self._rank * self._parts, (self._rank + 1) * self._parts)
        firsts = [
            -(-share * plan.rows // shares) for share in range(shares + 1)
        ]  # of too few rows, the first shares have one
        return [self._builder.batch(plan, firsts[share], firsts[share + 1], rows) for share in mine]

    def _rows_of_a_part(self, rows: int) -> int:
        """The same for all parts of an update, so that they have one shape; those with fewer are filled up."""
        shares = self._world * self._parts
        return rows if shares == 1 else self._tile * -(-rows // (shares * self._tile))
