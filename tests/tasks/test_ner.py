"""Named entity recognition: the reader, the tagger, and a training that must succeed."""

import lzma

import numpy as np
import pytest
import torch
from models import SHARED

from elmofire import DataError, InputError
from elmofire.tasks.features import Features, FlatText, Spellings
from elmofire.tasks.metrics.spans import span_counts
from elmofire.tasks.ner import NerData, NerRun, NerTagger, read_conll2003, train_ner
from elmofire.tasks.tagging import TaggedSentence
from elmofire.tasks.trainer import TrainerSettings

CONLL = SHARED / "data/tasks/ner"


# ── data ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_documents_are_dropped_sentences_parted_and_tags_converted(tmp_path):
    path = tmp_path / "eng.xz"
    lines = [
        "-DOCSTART- -X- -X- O",
        "",
        "EU NNP I-NP I-ORG",
        "met VBD I-VP O",
        "Ann NNP I-NP I-PER",
        "Lee NNP I-NP I-PER",
    ]
    lines += ["Bo NNP B-NP B-PER", "", "", "-DOCSTART- -X- O O", "Why WRB O O"]
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    assert read_conll2003(path) == [
        TaggedSentence(["EU", "met", "Ann", "Lee", "Bo"], ["S-ORG", "O", "B-PER", "E-PER", "S-PER"]),
        TaggedSentence(["Why"], ["O"]),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU NNP I-NP I-ORG\nmet VBD O", "eng:2: 3 fields"),
        ("EU NNP I-NP I-ORG\n\nmet VBD I-VP S-ORG", "eng:3: the entity tag 'S-ORG'"),
        ("EU NNP I-NP I-", "eng:1: the entity tag 'I-'"),
        ("EU NNP I-NP ORG", "eng:1: the entity tag 'ORG'"),
        ("-DOCSTART- -X- O O\n\n", "holds no sentence"),
    ],
)
def test_a_broken_line_is_named(tmp_path, content, message):
    (tmp_path / "eng").write_text(content)
    with pytest.raises(DataError, match=message):
        read_conll2003(tmp_path / "eng")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"eng\.train\.xz: cannot be opened"):
        NerData.load(tmp_path)


@pytest.mark.skipif(not CONLL.is_dir(), reason=f"no CoNLL-2003 at {CONLL}")
def test_the_shared_task_has_its_published_numbers():
    data = NerData.load(CONLL)
    published = {"train": (14041, 203621, 23499), "dev": (3250, 51362, 5942), "test": (3453, 46435, 5648)}
    for split, numbers in data.numbers.items():
        tags = [data.tags[number] for number in numbers]
        spans = span_counts(tags, tags)[:, 2].sum()
        assert (len(numbers), data.text.lengths[numbers].sum(), spans) == published[split]
    assert data.training_tokens == 203621
    assert {name[2:] for name in data.tag_set.names} == {"", "LOC", "MISC", "ORG", "PER"}


# ── model ───────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = {"PER": ["Ann", "Bo Lee", "Ann Bo Cox"], "LOC": ["Rome", "New Delhi", "East New York"]}
VERBS = ["met", "saw", "left"]


def made_sentences(count: int, seed: int) -> list[TaggedSentence]:
    """A person, a verb, a place; either may be left out."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        tokens, tags = [], []
        for kind in ("PER", "", "LOC"):
            words = (VERBS if not kind else NAMES[kind])[rng.integers(3)].split()
            if kind and rng.random() < 0.2:
                continue
            prefixes = ["S"] if len(words) == 1 else ["B", *"I" * (len(words) - 2), "E"]
            tokens += words
            tags += [f"{prefix}-{kind}" if kind else "O" for prefix in prefixes]
        made.append(TaggedSentence(tokens, tags))
    return made


@pytest.fixture(scope="module")
def data() -> NerData:
    return NerData({"train": made_sentences(120, 1), "dev": made_sentences(30, 2), "test": made_sentences(30, 3)})


def test_training_sentences_must_come_first():
    train, dev = made_sentences(5, 1), made_sentences(2, 2)
    for splits in ({"dev": dev, "train": train}, {"dev": dev}, {"train": [], "dev": dev}, {}):
        with pytest.raises(InputError, match="the splits are"):
            NerData(splits)


def test_a_kind_that_training_lacks_is_never_right_but_counts():
    train, other = made_sentences(40, 1), TaggedSentence(["Ann", "met", "Bach"], ["S-PER", "O", "S-ART"])
    data = NerData({"train": train, "dev": [other], "test": [other]})
    assert {name[2:] for name in data.tag_set.names} == {"", "LOC", "PER"}
    features, vectors = made_features(data)
    settings = TrainerSettings(epochs=8, patience=8, batch=8, learning_rate=1e-2)
    run, _ = train_ner(data, features, settings, vectors=vectors)
    right, predicted, gold = run.counts("test")[0].tolist()
    assert (right, gold) == (1, 2)
    assert "S-ART" not in run.predict(data.numbers["test"])[0]
    assert predicted >= 1


def test_training_on_nothing_is_refused(data):
    with pytest.raises(InputError, match="no features"):
        train_ner(data, Features())


def test_words_need_their_table_and_a_table_its_words(data):
    features, vectors = made_features(data)
    with pytest.raises(InputError, match="give both or neither"):
        train_ner(data, Features(words=features.words))
    with pytest.raises(InputError, match="give both or neither"):
        train_ner(data, Features(layers=features.layers), vectors=vectors)


def made_features(data: NerData) -> tuple[Features, torch.Tensor]:
    """All three kinds; the layers are random numbers of each token."""
    words: dict[str, int] = {}
    rows = torch.tensor([words.setdefault(token, len(words)) for token in data.text.tokens])
    vectors = torch.from_numpy(np.random.default_rng(1).normal(0, 0.4, (len(words), 10)).astype(np.float32))
    layers = torch.from_numpy(np.random.default_rng(2).normal(0, 1, (len(words), 3, 6)).astype(np.float16))
    return Features(rows, Spellings(data.text.tokens, "cpu"), layers[rows]), vectors


@pytest.fixture
def run(data) -> NerRun:
    torch.manual_seed(1)
    features, vectors = made_features(data)
    tagger = NerTagger(data.tag_set, vectors=vectors, characters=True, layers=(3, 6), cells=8)
    for parameter in tagger.crf.parameters():
        torch.nn.init.normal_(parameter)
    return NerRun(tagger, data, features, "cpu")


def test_a_batch_costs_the_mean_of_its_sentences(run):
    run.model.eval()
    numbers = np.array([3, 17, 4, 90, 11])
    alone = [run.loss(numbers[n : n + 1]).item() for n in range(len(numbers))]
    assert len(set(run.data.text.lengths[numbers].tolist())) > 1
    assert run.loss(numbers).item() == pytest.approx(np.mean(alone), rel=1e-5)


def test_predictions_do_not_depend_on_company_and_come_in_order(run):
    numbers = run.data.numbers["dev"][::-1]
    together = run.predict(numbers)
    assert together == [run.predict(numbers[n : n + 1])[0] for n in range(len(numbers))]
    assert [len(tags) for tags in together] == run.data.text.lengths[numbers].tolist()


def test_everything_that_is_read_is_trained(run):
    run.loss(np.arange(20)).backward()
    for name, parameter in run.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "parts", [("words",), ("spellings",), ("layers",), ("words", "spellings", "layers")], ids="+".join
)
def test_any_of_its_inputs_teaches_the_task(data, parts):
    features, vectors = made_features(data)
    chosen = Features(**{part: getattr(features, part) for part in parts})
    settings = TrainerSettings(epochs=8, patience=8, batch=8, learning_rate=1e-2)
    run, epochs = train_ner(data, chosen, settings, vectors=vectors if "words" in parts else None)
    assert epochs[-1].loss < epochs[0].loss / 5
    assert run.f1("test") > 97


def test_the_same_seed_gives_the_same_model_and_leaves_the_callers_numbers_alone(data):
    features, vectors = made_features(data)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(7)
        _, epochs = train_ner(data, features, TrainerSettings(epochs=2), vectors=vectors, seed=seed)
        losses.append([(epoch.loss, epoch.score) for epoch in epochs])
        assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(7)).item()
    assert losses[0] == losses[1] != losses[2]


def test_flat_text_gives_its_sentences_back():
    assert list(FlatText([["a", "b"], [], ["c"]]).sentences()) == [["a", "b"], [], ["c"]]
