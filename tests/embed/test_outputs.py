"""Files of vectors: what they hold, and that an interrupted run goes on where it was."""

import json
import multiprocessing
from importlib import import_module

import h5py
import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from filelock import FileLock
from models import lively, tiny

from elmofire import Embedder, InputError, open_embeddings, save_weights
from elmofire.cli import cli
from elmofire.embed import job
from elmofire.embed.job import embed_to_file

SENTENCES = [["the", "cat", "/", "sat"], [], ["why"], ["why"], ["x\ud800y", "日本", "\n", "\u2028"]]
SUFFIXES = ["hdf5", "h5", "npz", "safetensors"]


@pytest.fixture
def elmo():
    return Embedder(lively(tiny()))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layers", ["average", "all", 1, [0.0, 1.0, 2.0]], ids=str)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_back(elmo, tmp_path, suffix, layers, dtype):
    output = tmp_path / "deep" / f"vectors.{suffix}"
    report = embed_to_file(elmo, SENTENCES, output, layers=layers, dtype=dtype)
    assert (report.sentences, report.tokens, report.resumed) == (5, 10, 0)
    assert sorted(file.name for file in output.parent.iterdir()) == [output.name]
    embeddings = open_embeddings(output)
    assert len(embeddings) == 5
    for number, expected in enumerate(elmo.embed(SENTENCES, layers=layers)):
        assert embeddings[number].dtype == dtype
        np.testing.assert_array_equal(embeddings[number], expected.astype(dtype))
        assert embeddings.tokens(number) == SENTENCES[number]
    np.testing.assert_array_equal(embeddings[-1], embeddings[4])
    assert embeddings.metadata["layers"] == layers
    with pytest.raises(IndexError, match="sentence 5 of 5"):
        embeddings[5]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_can_be_closed(elmo, tmp_path, suffix):
    embed_to_file(elmo, SENTENCES, tmp_path / f"v.{suffix}")
    with open_embeddings(tmp_path / f"v.{suffix}") as embeddings:
        assert len(embeddings[0]) == len(SENTENCES[0])
    if suffix == "hdf5":
        with pytest.raises((ValueError, KeyError)):  # h5py's own
            embeddings[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_output_may_be_text_or_a_path_and_begin_at_home(elmo, tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, output in {"a": tmp_path / "a", "b": f"{tmp_path}/b", "c": "~/c"}.items():
        embed_to_file(elmo, SENTENCES, type(output)(f"{output}.{suffix}"))
        for same in (f"~/{name}.{suffix}", tmp_path / f"{name}.{suffix}"):
            assert open_embeddings(same).tokens(0) == SENTENCES[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.{suffix}" for name in "abc"]


@pytest.mark.parametrize("bare", ["Why?", b"Why?"])
def test_one_string_in_place_of_sentences_is_not_taken_letter_by_letter(elmo, tmp_path, bare):
    with pytest.raises(InputError, match="one string was given"):
        embed_to_file(elmo, bare, tmp_path / "v.npz")
    assert not list(tmp_path.iterdir())


def test_hdf5_is_laid_out_as_allennlp_did(elmo, tmp_path):
    embed_to_file(elmo, SENTENCES[:4], tmp_path / "v.hdf5", layers="all")
    with h5py.File(tmp_path / "v.hdf5") as file:
        assert sorted(file) == ["0", "1", "2", "3", "sentence_to_index"]
        assert file["0"].shape == (3, 4, 12)
        assert file["0"].dtype == np.float32
        index = json.loads(file["sentence_to_index"][0])
        assert file["sentence_to_index"].shape == (1,)
    assert index == {"the cat / sat": "0", "": "1", "why": "3"}


def test_an_hdf5_file_of_allennlps_own_is_read(tmp_path):
    with h5py.File(tmp_path / "old.hdf5", "w") as file:
        file["0"] = np.ones((2, 3), dtype=np.float32)
        file["1"] = np.zeros((1, 3), dtype=np.float32)
        file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype(), data=json.dumps({"a b": "0"}))
    embeddings = open_embeddings(tmp_path / "old.hdf5")
    assert (len(embeddings), embeddings.tokens(0), embeddings.tokens(1), embeddings.metadata) == (
        2,
        ["a", "b"],
        None,
        {},
    )


def test_other_readers_read_the_other_formats(elmo, tmp_path):
    for suffix in ("npz", "safetensors"):
        embed_to_file(elmo, SENTENCES, tmp_path / f"v.{suffix}", boundaries=True)
    stored = safetensors.numpy.load_file(tmp_path / "v.safetensors")
    with np.load(tmp_path / "v.npz", allow_pickle=False) as arrays:
        for name in ("vectors", "offsets", "tokens"):
            np.testing.assert_array_equal(arrays[name], stored[name])
    assert stored["offsets"].tolist() == [0, 6, 8, 11, 14, 20]
    assert stored["vectors"].shape == (20, 12)


@pytest.mark.parametrize("suffix", ["HDF5", "H5", "Npz", "SAFETENSORS"])
def test_endings_may_be_capitals(elmo, tmp_path, suffix):
    embed_to_file(elmo, [["a", "b"]], tmp_path / f"v.{suffix}")
    assert open_embeddings(tmp_path / f"v.{suffix}").tokens(0) == ["a", "b"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_sentences_make_a_file_of_none(elmo, tmp_path, suffix):
    assert embed_to_file(elmo, [], tmp_path / f"v.{suffix}").sentences == 0
    assert len(open_embeddings(tmp_path / f"v.{suffix}")) == 0


def interrupted(sentences, after):
    for number, sentence in enumerate(sentences):
        if number == after:
            raise KeyboardInterrupt
        yield sentence


@pytest.mark.parametrize("at_once", [1, 30, 1 << 16])
@pytest.mark.parametrize("layers", ["average", "all"])
def test_lines_of_json_are_whole_however_they_are_cut(elmo, tmp_path, monkeypatch, layers, at_once):
    monkeypatch.setattr(import_module("elmofire.cli.embed"), "_NUMBERS_AT_ONCE", at_once)
    save_weights(lively(tiny()), tmp_path / "model")
    sentences = [["the", "cat", "sat"], [], ["日本"]]
    (tmp_path / "text.txt").write_text("".join(" ".join(tokens) + "\n" for tokens in sentences))
    command = ["embed", "-m", str(tmp_path / "model"), "-l", layers, "--pretokenized", "-q", str(tmp_path / "text.txt")]
    lines = CliRunner().invoke(cli, command).stdout.splitlines()
    assert len(lines) == 3
    for line, tokens, vectors in zip(lines, sentences, elmo.embed(sentences, layers=layers), strict=True):
        assert line == json.dumps({"tokens": tokens, "vectors": vectors.tolist()})


TEXT = [[f"w{n}", "x"] * (n % 4 + 1) for n in range(60)]


class TestInterruption:
    @pytest.fixture(autouse=True)
    def small_pieces(self, elmo, monkeypatch):
        monkeypatch.setattr(job, "_PIECE_TOKENS", 50)
        elmo.batch_tokens = 10

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_the_same_call_goes_on_where_it_was(self, elmo, tmp_path, suffix):
        output = tmp_path / f"v.{suffix}"
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), output, input_stamp="text 1")
        assert not output.exists()
        seen = []
        report = embed_to_file(elmo, TEXT, output, input_stamp="text 1", progress=lambda *made: seen.append(made))
        assert 10 < report.resumed <= 40
        assert report.sentences == 60
        assert seen[0] == (report.resumed, 0)
        assert sum(sentences for sentences, _ in seen) == 60
        embed_to_file(elmo, TEXT, tmp_path / f"whole.{suffix}")
        for found, expected in zip(open_embeddings(output), open_embeddings(tmp_path / f"whole.{suffix}"), strict=True):
            np.testing.assert_array_equal(found, expected)
        (tmp_path / f"whole.{suffix}").unlink()
        assert [file.name for file in tmp_path.iterdir()] == [output.name]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"input_stamp": "text 2"}, "the input .* changed"),
            ({"input_stamp": None}, "the input .* changed"),
            ({"layers": "top"}, "layers is top now and was average\\n"),
            ({"dtype": "float16", "boundaries": True}, "boundaries is True now and was False, dtype is float16 now"),
        ],
    )
    def test_another_call_is_refused_and_loses_nothing(self, elmo, tmp_path, change, said):
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), tmp_path / "v.npz", input_stamp="text 1")
        with pytest.raises(InputError, match=said) as refused:
            embed_to_file(elmo, TEXT, tmp_path / "v.npz", **{"input_stamp": "text 1", **change})
        assert f"remove {tmp_path / 'v.npz.parts'}" in refused.value.hint
        assert [file.name for file in tmp_path.iterdir()] == ["v.npz.parts"]
        assert embed_to_file(elmo, TEXT, tmp_path / "v.npz", input_stamp="text 1").resumed > 0

    @pytest.mark.parametrize("manifest", [None, "{", '{"elmofire": "0.0.1", "input": "text 1"}'])
    def test_pieces_that_no_run_could_go_on_with_are_removed(self, elmo, tmp_path, manifest):
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), tmp_path / "v.npz", input_stamp="text 1")
        file = tmp_path / "v.npz.parts/manifest.json"
        file.unlink() if manifest is None else file.write_text(manifest)
        with pytest.warns(
            UserWarning, match="pieces of an interrupted run that cannot be resumed here; they are removed"
        ):
            assert embed_to_file(elmo, TEXT, tmp_path / "v.npz", input_stamp="text 1").resumed == 0

    @pytest.mark.parametrize("name", ["engine", "stamp"])
    def test_what_nobody_types_refuses_no_command(self, elmo, tmp_path, name):
        """The same command on another processor, say, has to start anew, and does."""
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), tmp_path / "v.npz", input_stamp="text 1")
        file = tmp_path / "v.npz.parts/manifest.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: "another"}))
        with pytest.warns(UserWarning, match="cannot be resumed here"):
            assert embed_to_file(elmo, TEXT, tmp_path / "v.npz", input_stamp="text 1").resumed == 0

    def test_a_run_that_finished_no_piece_hinders_no_other(self, elmo, tmp_path):
        (tmp_path / "v.npz.parts").mkdir()
        (tmp_path / "v.npz.parts/manifest.json").write_text('{"elmofire": "0.0.1", "input": "text 1"}')
        assert embed_to_file(elmo, TEXT, tmp_path / "v.npz", input_stamp="text 2").sentences == 60

    def test_a_piece_without_its_vectors_is_made_again(self, elmo, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), tmp_path / "v.npz", input_stamp="text 1")
        last = sorted((tmp_path / "v.npz.parts").glob("*.npy"))[-1]
        last.unlink()
        assert embed_to_file(elmo, TEXT, tmp_path / "v.npz", input_stamp="text 1").resumed > 0
        assert len(open_embeddings(tmp_path / "v.npz")) == 60

    @pytest.mark.parametrize("stamp", ["text 1", None])
    def test_nothing_is_left_of_a_run_that_did_nothing(self, elmo, tmp_path, stamp):
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 3), tmp_path / "new/folder/v.npz", input_stamp=stamp)
        assert list(tmp_path.iterdir()) == []

    def test_pieces_stay_without_a_lock_only_where_the_run_can_go_on(self, elmo, tmp_path):
        for stamp, left in (("text 1", ["v.npz.parts"]), (None, [])):
            folder = tmp_path / str(stamp)
            with pytest.raises(KeyboardInterrupt):
                embed_to_file(elmo, interrupted(TEXT, 40), folder / "v.npz", input_stamp=stamp)
            assert [file.name for file in folder.glob("*")] == left

    def test_an_older_output_stays_until_the_new_one_is_whole(self, elmo, tmp_path):
        embed_to_file(elmo, [["old"]], tmp_path / "v.npz")
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(elmo, interrupted(TEXT, 40), tmp_path / "v.npz", input_stamp="text 1")
        assert open_embeddings(tmp_path / "v.npz").tokens(0) == ["old"]


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("folder.hdf5", r"folder\.hdf5: is a folder"),
            ("text.txt/v.hdf5", r"text\.txt/v\.hdf5: cannot be written: Not a directory"),
            ("text.txt/new/v.hdf5", r"text\.txt/new/v\.hdf5: cannot be written: Not a directory"),
            (f"{'x' * 240}.hdf5", r"xx\.hdf5: cannot be written: File name too long"),
            (f"{'x' * 400}.hdf5", r"xx\.hdf5: cannot be written: File name too long"),
        ],
        ids=["a folder", "in a file", "deep in a file", "no room for its parts", "too long"],
    )
    def test_a_place_where_no_file_can_be_is_named_before_the_work(self, elmo, tmp_path, name, said):
        (tmp_path / "folder.hdf5").mkdir()
        (tmp_path / "text.txt").write_text("Why?\n")
        with pytest.raises(InputError, match=said):
            embed_to_file(elmo, iter([]), tmp_path / name)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.hdf5", "text.txt"]

    def test_a_name_that_tells_no_format(self, elmo, tmp_path):
        with pytest.raises(InputError, match=r"should end in \.hdf5"):
            embed_to_file(elmo, SENTENCES, tmp_path / "vectors.txt")
        (tmp_path / "text.txt").write_text("Why?")
        with pytest.raises(InputError, match=r"text\.txt: is no file of vectors, whose names end in \.hdf5"):
            open_embeddings(tmp_path / "text.txt")
        with pytest.raises(InputError, match="no such file"):
            open_embeddings(tmp_path / "vectors.npz")

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_files_that_are_broken_or_something_else(self, elmo, tmp_path, suffix):
        output = tmp_path / f"v.{suffix}"
        embed_to_file(elmo, SENTENCES, output)
        whole = output.read_bytes()
        for broken in (b"", whole[: len(whole) // 2], b"x" * 100):
            output.write_bytes(broken)
            with pytest.raises(InputError, match=rf"v\.{suffix}"):
                open_embeddings(output)
        np.save(tmp_path / "array.npy", np.ones(3))
        (tmp_path / "array.npy").replace(output)
        with pytest.raises(InputError, match=rf"v\.{suffix}"):
            open_embeddings(output)

    def test_offsets_and_tokens_that_do_not_fit_the_vectors(self, tmp_path):
        whole = {
            "vectors": np.ones((3, 4), np.float32),
            "offsets": np.array([0, 1, 3]),
            "tokens": np.frombuffer(b'["a"]\n["b", "c"]\n', np.uint8),
            "metadata": np.frombuffer(b"{}", np.uint8),
        }
        np.savez(tmp_path / "v.npz", **whole)
        assert open_embeddings(tmp_path / "v.npz").tokens(1) == ["b", "c"]
        np.savez(tmp_path / "v.npz", **{**whole, "tokens": whole["tokens"][:6]})
        with pytest.raises(InputError, match=r"v\.npz: has vectors of 2 sentences, but tokens of 1"):
            open_embeddings(tmp_path / "v.npz")
        np.savez(tmp_path / "v.npz", **{**whole, "offsets": np.array([1, 2, 3])})
        with pytest.raises(InputError, match="offsets do not fit"):
            open_embeddings(tmp_path / "v.npz")

    def test_two_processes_do_not_write_one_file(self, elmo, tmp_path):
        with FileLock(f"{tmp_path / 'v.npz'}.lock"), pytest.raises(InputError, match="another process"):
            in_a_process(elmo, tmp_path / "v.npz")


def in_a_process(elmo, output):
    """The lock is the process's: a second one in this process would be let in."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def run():
        try:
            embed_to_file(elmo, [["a"]], output)
        except InputError as error:
            queue.put(str(error))
        else:
            queue.put("written")

    process = context.Process(target=run)
    process.start()
    said = queue.get(timeout=60)
    process.join()
    raise InputError(said)
