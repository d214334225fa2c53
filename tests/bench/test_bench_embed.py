"""Contenders in processes of their own, and the figures of their turns."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from models import lively, tiny

from elmofire import Embedder
from elmofire.bench import worker
from elmofire.bench.contenders import Contender, Process
from elmofire.bench.embed import Plan, bench_embed, model_files
from elmofire.bench.tables import aligned, corpus_rows, error_rows, single_rows
from elmofire.bench.text import sample_sentences
from elmofire.errors import InputError

NUMPY = Contender(instruction_set="numpy")
SENTENCES = sample_sentences(6)


@pytest.fixture
def weights():
    return lively(tiny(), seed=5)


def test_a_process_gives_the_embedders_own_vectors(weights):
    with model_files(weights, for_peer=False) as folder, Process(NUMPY, folder) as process:
        assert process.engine == "numpy"
        for found, expected in zip(process.vectors(SENTENCES), Embedder.load(folder).embed(SENTENCES), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
        assert process.timed(SENTENCES)["seconds"] > 0


def test_a_process_that_cannot_load_says_why(tmp_path):
    with Process(NUMPY, tmp_path / "nowhere") as process, pytest.raises(InputError, match="nowhere"):
        process.layers(SENTENCES)
    with pytest.raises(InputError, match="cannot be run"):
        Process(Contender(library="allennlp", python=str(tmp_path / "python")), tmp_path)


def test_a_plan_is_measured_for_every_contender_and_case(weights):
    two = Contender(instruction_set="numpy", threads=2)
    records = bench_embed(weights, Plan(contenders=[NUMPY, two], sentences=SENTENCES, singles=SENTENCES[:3]))
    assert [record["case"] for record in records] == ["parity"] * 2 + ["corpus"] * 2 + ["single"] * 2
    corpus, single = records[3], records[5]
    assert corpus["tokens"] == sum(map(len, SENTENCES))
    assert corpus["tokens_per_second"]["repeats"] == corpus["over_one_thread"]["repeats"] == 5
    assert single["milliseconds"]["p50"] <= single["milliseconds"]["p99"] == single["milliseconds"]["most"]
    for rows in (error_rows, corpus_rows, single_rows):
        assert aligned(rows(records)).count("numpy") >= 1


def test_a_contender_with_other_vectors_is_not_timed(weights, monkeypatch, tmp_path):
    wrong = tmp_path / "worker.py"
    source = Path(worker.__file__).read_text(encoding="utf-8")
    spoiled = source.replace(
        "return self.elmo.embed(sentences)", "return [v * 1.01 for v in self.elmo.embed(sentences)]"
    )
    assert spoiled != source
    wrong.write_text(spoiled, encoding="utf-8")
    monkeypatch.setattr(worker, "__file__", str(wrong))
    records = bench_embed(weights, Plan(contenders=[NUMPY], sentences=SENTENCES, singles=SENTENCES[:2]))
    assert [record["case"] for record in records] == ["parity"]
    assert "off by 1.0e-02" in records[0]["refused"]
    assert "off by" in aligned(error_rows(records))


def test_a_peer_gets_whole_batches_and_its_ratios_are_of_the_same_threads(weights, monkeypatch, tmp_path):
    """A stand-in for the peer: the same embedder under another name, which notes what it is asked for."""
    asked = tmp_path / "asked.jsonl"
    source = Path(worker.__file__).read_text(encoding="utf-8")
    replaced = source.replace('"allennlp": AllenNLP', '"allennlp": Peer').replace(
        "LIBRARIES =",
        "class Peer(Elmofire):\n"
        "    def embed(self, sentences):\n"
        f"        open({str(asked)!r}, 'a').write(str(len(sentences)) + '\\n')\n"
        "        return super().embed(sentences)\n\n\nLIBRARIES =",
    )
    (tmp_path / "worker.py").write_text(replaced, encoding="utf-8")
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "worker.py"))
    peer = Contender(library="allennlp", python=sys.executable, threads=1)
    two = Contender(instruction_set="numpy", threads=2)
    records = bench_embed(weights, Plan(contenders=[NUMPY, two, peer], sentences=sample_sentences(70)))
    assert asked.read_text().split() == ["32", "32", "32", "6", "32", "32"]  # parity, then a batch in each repeat
    ours, other, _ = (record for record in records if record["case"] == "corpus")
    assert ours["over_allennlp"]["repeats"] == 5
    assert "over_allennlp" not in other


def test_a_plan_without_text_or_with_too_few_repeats_is_refused():
    with pytest.raises(InputError, match="no text"):
        Plan(contenders=[NUMPY], sentences=[[]])
    with pytest.raises(InputError, match="too few"):
        Plan(contenders=[NUMPY], sentences=SENTENCES, repeats=4)


def test_made_up_sentences_repeat_words_and_vary_in_length_as_english_does():
    sentences = sample_sentences(3200, seed=2)
    lengths = np.array([len(sentence) for sentence in sentences])
    assert 14 < lengths.mean() < 17
    assert 11 <= np.median(lengths) <= 14
    assert 40 < np.percentile(lengths, 99) < 65
    pools = [[token for sentence in sentences[k : k + 320] for token in sentence] for k in range(0, 3200, 320)]
    assert 0.28 < np.mean([len(set(pool)) / len(pool) for pool in pools]) < 0.38
    assert json.loads(json.dumps(sentences)) == sentences
