"""What commands read: how lines become sentences, and how many there are to come."""

import bz2
import gzip
import json
import lzma
from dataclasses import replace

import numpy as np
import pytest
from models import lively, tiny

from elmofire import Embedder, open_embeddings, save_weights
from elmofire.cli.inputs import Inputs
from elmofire.cli.progress import Progress
from elmofire.embed import job
from elmofire.text import readers
from elmofire.text.tokenizers import TokenizerInfo

PARAGRAPHS = 'Dr. No went home. "Why?" she asked. Nobody knew.\n\nIt rained. It was late.\n'
SENTENCES = ["Dr. No went home.", '"Why?" she asked.', "Nobody knew.", "It rained.", "It was late."]


@pytest.fixture
def model(tmp_path):
    save_weights(lively(tiny()), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(PARAGRAPHS)
    return tmp_path / "text.txt"


class TestSplit:
    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    def test_a_file_of_vectors_has_one_entry_a_sentence(self, run, model, text, tmp_path, suffix):
        output = tmp_path / f"v.{suffix}"
        code, out, err = run("embed", "-m", model, "--sentences", "split", "-o", output, "--json", text)
        assert code == 0
        assert "note:" not in err
        assert json.loads(out)["sentences"] == 5
        embeddings, elmo = open_embeddings(output), Embedder.load(model)
        assert len(embeddings) == 5
        for number, expected in enumerate(elmo.embed(SENTENCES)):
            assert embeddings.tokens(number) == elmo.words(SENTENCES[number])
            np.testing.assert_allclose(embeddings[number], expected, rtol=1e-5, atol=1e-6)

    def test_it_goes_by_the_models_language(self, run, tmp_path):
        (tmp_path / "text.txt").write_text("Am 3. Oktober war es kalt. Es regnete.\n")
        for language, count in (("de", 2), ("fi", 2), ("sq", 3)):
            tokenizer = TokenizerInfo("plain", language, 1)
            save_weights(replace(lively(tiny()), tokenizer=tokenizer), tmp_path / language)
            out = run("embed", "-m", tmp_path / language, "--sentences", "split", tmp_path / "text.txt")[1]
            assert len(out.splitlines()) == count, language

    def test_tokens_of_a_line_are_split_where_its_sentences_end_and_lists_stay_as_they_are(self, run, model, tmp_path):
        (tmp_path / "a.txt").write_text("It rained . Do n't go .\n")
        (tmp_path / "b.jsonl").write_text('["Go", ".", "Now", "."]\n"Go on. Now."\n')
        given = ["--sentences", "split", "--pretokenized", tmp_path / "a.txt", tmp_path / "b.jsonl"]
        out = run("embed", "-m", model, "-q", *given)[1]
        assert [" ".join(json.loads(line)["tokens"]) for line in out.splitlines()] == [
            "It rained .",
            "Do n't go .",
            "Go . Now .",
            "Go on.",
            "Now.",
        ]

    def test_an_interrupted_job_is_not_resumed_in_the_other_way(self, run, model, tmp_path, monkeypatch):
        monkeypatch.setattr(job, "_PIECE_TOKENS", 100)
        text, output = tmp_path / "text.txt", tmp_path / "v.npz"
        text.write_text("It rained all day. Nobody knew why.\n" * 50)
        with monkeypatch.context() as patch:
            patch.setattr(Progress, "__call__", _interrupt_after(20))
            assert run("embed", "-m", model, "-o", output, text)[0] == 130
        code, out, said = run("embed", "-m", model, "-o", output, "--sentences", "split", text)
        assert (code, out) == (2, "")
        assert "interrupted run that was not this one: the input" in said
        assert json.loads(run("embed", "-m", model, "-o", output, "--json", text)[1])["resumed"] > 0


def _interrupt_after(sentences: int):
    def call(progress, more, tokens):
        progress.sentences += more
        if progress.sentences > sentences:
            raise KeyboardInterrupt

    return call


def in_small_blocks(content: bytes) -> bytes:
    return bz2.compress(content, 1)


class TestExpected:
    """The time left is told without reading everything first."""

    @pytest.mark.parametrize("flags", [[], ["--quiet"]], ids=["told", "quiet"])
    def test_files_are_read_once(self, run, model, text, tmp_path, monkeypatch, flags):
        opened = []
        read = readers.read_sentences

        def counted(path, **options):
            opened.append(path)
            return read(path, **options)

        monkeypatch.setattr(readers, "read_sentences", counted)
        assert run("embed", "-m", model, "-o", tmp_path / "v.npz", text, text, *flags)[0] == 0
        assert opened == [str(text)] * 2

    @pytest.mark.parametrize(
        ("suffix", "compress"), {"": bytes, ".gz": gzip.compress, ".bz2": in_small_blocks, ".xz": lzma.compress}.items()
    )
    @pytest.mark.parametrize("sentences", ["lines", "split"])
    def test_how_many_sentences_there_are_is_estimated_on_the_way(self, model, tmp_path, suffix, compress, sentences):
        numbers = np.random.default_rng(5).integers(1 << 40, size=(2, 30_000))  # little to compress
        files = [tmp_path / f"{number}.txt{suffix}" for number in range(2)]
        for file, drawn in zip(files, numbers, strict=True):
            file.write_bytes(compress("".join(f"It was {n}. So what?\n" for n in drawn).encode()))
        inputs = Inputs(tuple(map(str, files)), "auto", pretokenized=False, sentences=sentences)
        total = 60_000 * (2 if sentences == "split" else 1)
        elmo, progress = Embedder.load(model), Progress(total=inputs.expected, quiet=True)
        assert inputs.expected() is None
        estimates = [
            inputs.expected() for number, _ in enumerate(inputs.sentences(elmo, progress)) if number % 5000 == 4999
        ]
        assert len(estimates) == total / 5000
        assert max(abs(estimate / total - 1) for estimate in estimates[len(estimates) // 4 :]) < 0.2
        assert inputs.expected() == total

    def test_of_a_pipe_nothing_is_known(self, run, model):
        assert Inputs(("-",), "auto", pretokenized=False).expected() is None

    def test_a_line_of_progress_tells_the_share_and_the_time_left(self, monkeypatch):
        progress = Progress(total=lambda: 400, quiet=True)
        monkeypatch.setattr("time.monotonic", lambda: progress._start + 10)
        assert progress.line() == "0 sentences, 0 tokens, 0 tokens/s"
        progress(100, 2000)
        assert progress.line() == "100 sentences, 2,000 tokens, 200 tokens/s, 25%, 0:30 left"
