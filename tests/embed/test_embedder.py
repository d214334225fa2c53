"""What the Embedder takes and gives."""

import pickle
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import ENGINES, embedder_on, lively, tiny, words_only

from elmofire import Elmo, Embedder, InputError, LanguageModel, ModelError, load_weights, save_weights
from elmofire.embed import device
from elmofire.model import torch_engine
from elmofire.text.vocabulary import Vocabulary

SENTENCES = [["the", "cat", "sat"], [], ["why"]]


@pytest.fixture
def elmo():
    return Embedder(lively(tiny()))


class TestLayers:
    def test_each_choice_is_what_its_name_says(self, elmo):
        everything = elmo.embed(SENTENCES, layers="all")
        assert [vectors.shape for vectors in everything] == [(3, 3, 12), (3, 0, 12), (3, 1, 12)]
        assert all(vectors.dtype == np.float32 for vectors in everything)
        for row, layers in enumerate(everything):
            np.testing.assert_allclose(elmo.embed(SENTENCES)[row], layers.mean(axis=0), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(elmo.embed(SENTENCES, layers="top")[row], layers[2])
            for j in range(3):
                np.testing.assert_array_equal(elmo.embed(SENTENCES, layers=j)[row], layers[j])
            weights = np.exp([0.5, -1.0, 2.0])
            expected = np.einsum("l,ltd->td", weights / weights.sum(), layers)
            np.testing.assert_allclose(
                elmo.embed(SENTENCES, layers=[0.5, -1.0, 2.0])[row], expected, rtol=1e-5, atol=1e-6
            )

    def test_layer_0_is_the_word_without_context_once_per_direction(self, elmo):
        (one, other) = elmo.embed([["the", "cat"], ["a", "cat", "too"]], layers=0)
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(one[:, :6], one[:, 6:])

    def test_one_direction_gives_its_half(self):
        both = Embedder(lively(tiny()))
        forward = Embedder(lively(tiny(directions=("forward",))))
        np.testing.assert_allclose(forward.embed(SENTENCES)[0], both.embed(SENTENCES)[0][:, :6], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        "layers", ["middle", -1, 3, [0.1, 0.2], [[1, 2, 3]], None, True, {"a": 1}, [float("nan")] * 3]
    )
    def test_a_wrong_choice_is_an_error(self, elmo, layers):
        with pytest.raises(InputError, match="layers"):
            elmo.embed(SENTENCES, layers=layers)

    def test_layers_of_different_widths_come_one_at_a_time(self):
        elmo = Embedder(lively(tiny(encoder_width=9)))
        assert elmo.embed([["a"]], layers=0)[0].shape == (1, 18)
        assert elmo.embed([["a"]], layers="top")[0].shape == (1, 12)
        with pytest.raises(InputError, match="different widths"):
            elmo.embed([["a"]])


class TestSentences:
    def test_strings_are_tokenized(self, elmo):
        np.testing.assert_array_equal(elmo.embed(["Don't go."])[0], elmo.embed([["Do", "n't", "go", "."]])[0])

    def test_tokens_with_their_places_are_tokens_too(self, elmo):
        text = "The cat sat."
        found, expected = elmo.embed([elmo.tokenize(text)]), elmo.embed([text])
        np.testing.assert_array_equal(found[0], expected[0])

    def test_tokens_know_their_place_in_the_text(self, elmo):
        text = "It's  “here”, isn't it?"
        for token in elmo.tokenize(text):
            assert text[token.start : token.end] == token.text

    def test_generators_and_tuples_are_fine(self, elmo):
        np.testing.assert_array_equal(elmo.embed(tuple(s) for s in SENTENCES)[0], elmo.embed(SENTENCES)[0])

    @pytest.mark.parametrize(
        ("sentences", "said"),
        [
            ("a bare string", "one string was given"),
            (b"bytes", "one string was given"),
            (7, "not int"),
            ({"a sentence": 1}, "not dict"),
            ({"a sentence", "another"}, "not set"),
            (["text", ["tokens"]], "sentence 1 is a list of tokens"),
            ([["tokens"], "text"], "sentence 1 is a string"),
            ([["a", 3]], "token 1 of sentence 0 is int"),
            ([["a"], [None]], "token 0 of sentence 1 is NoneType"),
            ([3], "sentence 0 is int"),
            ([b"bytes"], "sentence 0 is bytes"),
            ([{"a": 1}], "sentence 0 is dict"),
            ([{"a", "b"}], "sentence 0 is set"),
        ],
    )
    def test_anything_else_is_an_error_that_says_where(self, elmo, sentences, said):
        with pytest.raises(InputError, match=said):
            elmo.embed(sentences)

    @pytest.mark.parametrize("text", [["a"], None, b"bytes"])
    def test_only_a_string_is_split(self, elmo, text):
        for split in (elmo.tokenize, elmo.words):
            with pytest.raises(InputError, match="should be one sentence as a string"):
                split(text)

    def test_nothing_gives_nothing(self, elmo):
        assert elmo.embed([]) == []
        assert elmo.sentence_vectors([]).shape == (0, 12)
        array, mask = elmo.embed([], padded=True)
        assert (array.shape, mask.shape) == ((0, 0, 12), (0, 0))

    def test_boundaries_stand_first_and_last(self, elmo):
        kept = elmo.embed(SENTENCES, layers="all", boundaries=True)
        assert [vectors.shape[1] for vectors in kept] == [5, 2, 3]
        np.testing.assert_array_equal(kept[0][:, 1:-1], elmo.embed(SENTENCES, layers="all")[0])

    def test_truncated_tokens_are_counted(self, elmo):
        elmo.embed([["x" * 11, "x" * 12, "x" * 12], ["é" * 6]])
        assert elmo.truncated == 3
        assert elmo.info()["truncated"] == 3

    def test_whole_words_come_from_the_vocabulary(self):
        weights = lively(words_only(5), vocabulary=Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat"]))
        elmo = Embedder(weights)
        vectors = elmo.embed([["the", "dog", "wolf"]], layers=0)[0]
        np.testing.assert_array_equal(vectors[0, :6], weights.arrays["encoder.words"][3])
        np.testing.assert_array_equal(vectors[1], vectors[2])
        without = Embedder(lively(words_only(4), vocabulary=Vocabulary(["<S>", "</S>", "the", "cat"])))
        with pytest.raises(InputError, match="'dog' is not in the model's vocabulary"):
            without.embed([["the", "dog"]])
        with pytest.raises(ModelError, match="no <S>"):
            Embedder(lively(words_only(2), vocabulary=Vocabulary(["</S>", "the"]))).embed([["the"]])


class TestOtherShapes:
    @pytest.mark.parametrize("layers", ["average", "all"])
    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_sentence_vectors_pool_over_real_tokens_only(self, elmo, layers, pooling):
        found = elmo.sentence_vectors(SENTENCES, layers, pooling=pooling)
        vectors = elmo.embed(SENTENCES, layers)
        for row in (0, 2):
            np.testing.assert_allclose(found[row], getattr(np, pooling)(vectors[row], axis=-2), rtol=1e-5, atol=1e-6)
        assert found.shape == (3, *vectors[0].shape[:-2], 12)
        assert not found[1].any()
        with pytest.raises(InputError, match="pooling"):
            elmo.sentence_vectors(SENTENCES, pooling="sum")

    def test_streaming_reads_no_further_than_it_must(self, elmo):
        elmo.batch_tokens = 8
        read = []

        def endless():
            while True:
                read.append(1)
                yield ["a", "b"]

        stream = elmo.stream(endless())
        for _ in range(20):
            tokens, vectors = next(stream)
            assert (tokens, vectors.shape) == (["a", "b"], (2, 12))
        assert len(read) < 40

    def test_streaming_tells_its_progress(self, elmo):
        seen = []
        list(elmo.stream(SENTENCES, progress=lambda sentences, tokens: seen.append((sentences, tokens))))
        assert seen == [(2, 4)]  # the empty sentence is not run

    def test_layers_for_training_are_torch_tensors(self, elmo):
        layers, mask = elmo.layers(SENTENCES)
        assert isinstance(layers, torch.Tensor)
        assert layers.shape == (3, 3, 3, 12)
        assert mask.sum(dim=1).tolist() == [3, 0, 1]
        np.testing.assert_array_equal(layers[0].numpy(), elmo.embed(SENTENCES, layers="all")[0])


class TestState:
    def test_a_carried_state_changes_what_follows(self, elmo):
        (first,), state = elmo.embed([["the"]], state=elmo.zero_state())
        np.testing.assert_array_equal(first, elmo.embed([["the"]])[0])
        (second,), _ = elmo.embed([["the"]], state=state)
        assert np.abs(second - first).max() > 1e-3

    def test_the_given_state_is_left_as_it_was(self, elmo):
        state = elmo.warm_state([["a"], ["b"]])
        before = state.hidden.copy()
        elmo.embed([["c"]], state=state)
        np.testing.assert_array_equal(state.hidden, before)

    def test_rows_that_a_batch_does_not_use_stay(self, elmo):
        state = elmo.warm_state([["a"], ["b"], ["c"]])
        _, after = elmo.embed([["d"]], state=state)
        assert after.rows == 3
        np.testing.assert_array_equal(after.hidden[:, 1:], state.hidden[:, 1:])
        assert (after.hidden[:, 0] != state.hidden[:, 0]).any()

    def test_a_warm_state_is_one_pass_over_its_sentences(self, elmo):
        warm = elmo.warm_state(SENTENCES)
        _, expected = elmo.embed(SENTENCES, state=elmo.zero_state())
        np.testing.assert_array_equal(warm.memory, expected.memory)

    def test_the_layer_asked_for_does_not_change_the_state(self, elmo):
        _, one = elmo.embed(SENTENCES, layers=0, state=elmo.zero_state())
        _, other = elmo.embed(SENTENCES, layers="all", state=elmo.zero_state())
        np.testing.assert_array_equal(one.hidden, other.hidden)

    def test_another_models_state_is_refused(self, elmo):
        with pytest.raises(InputError, match="goes on only with the model that made it"):
            elmo.embed([["a"]], state=Embedder(lively(tiny(cells=12))).zero_state())

    def test_what_is_no_state_is_refused(self, elmo):
        with pytest.raises(InputError, match=r"state is 5(?s:.*)zero_state\(\) starts one"):
            elmo.embed([["a"]], state=5)


class TestLife:
    def test_a_pickled_embedder_is_a_path_and_a_stamp(self, tmp_path):
        save_weights(lively(tiny()), tmp_path / "model")
        elmo = Embedder.load(tmp_path / "model")
        pickled = pickle.dumps(elmo)
        assert len(pickled) < 2000
        np.testing.assert_array_equal(pickle.loads(pickled).embed(SENTENCES)[0], elmo.embed(SENTENCES)[0])
        save_weights(lively(tiny(), seed=9), tmp_path / "model")
        with pytest.raises(ModelError, match="have changed"):
            pickle.loads(pickled)

    def test_it_goes_into_another_process(self, tmp_path, monkeypatch):
        save_weights(lively(tiny()), tmp_path / "model")
        monkeypatch.chdir(tmp_path)
        elmo = Embedder.load("model")
        monkeypatch.chdir("/")
        pickled = pickle.dumps(elmo)
        program = f"import pickle; print(pickle.loads({pickled!r}).embed([['a', 'b']])[0].shape)"
        found = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "(2, 12)"

    def test_weights_in_memory_cannot_be_pickled(self, elmo):
        with pytest.raises(TypeError, match="save them"):
            pickle.dumps(elmo)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_running_out_of_memory_halves_the_batches_and_goes_on(self, engine, monkeypatch):
        sentences = [[f"w{n}"] * (n % 5 + 1) for n in range(30)]
        expected = embedder_on(engine, lively(tiny())).embed(sentences)
        elmo = embedder_on(engine, lively(tiny()))
        run, sizes = elmo._engine.by_sentence, []

        def small_device(vectors, pools, mix):
            for pool in pools:
                sizes.append(len(pool.tokens))
                if len(pool.tokens) > 20:
                    raise MemoryError
                yield from run(vectors, [pool], mix)

        monkeypatch.setattr(elmo._engine, "by_sentence", small_device)
        for found, wanted in zip(elmo.embed(sentences), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert max(sizes) > 100
        assert elmo.batch_tokens <= 20

    def test_a_sentence_that_never_fits_is_an_error(self, elmo, monkeypatch):
        def full(*_args, **_options):
            raise MemoryError("too large")
            yield

        monkeypatch.setattr(elmo._engine, "by_sentence", full)
        with pytest.raises(MemoryError, match="too large"):
            elmo.embed([["a"], ["b"]])

    def test_a_gpu_out_of_memory_is_a_memory_error(self, monkeypatch):
        elmo = embedder_on("torch", lively(tiny()))

        def full(*_args, **_options):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(torch_engine, "lstmp", full)
        with pytest.raises(MemoryError, match="does not fit the device"):
            elmo.embed([["a"]])


class TestDevice:
    def test_without_a_driver_auto_is_the_cpu_engine(self, monkeypatch):
        monkeypatch.setattr(device, "cuda_devices", lambda: 0)
        engine = Embedder.load("random-small", device="auto").info()["engine"]
        assert engine == "numpy" or engine.startswith("c (")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_a_device_that_is_not_there_is_an_error(self):
        with pytest.raises(InputError, match="'cuda' cannot be used"):
            Embedder.load("random-small", device="cuda")

    def test_other_mistakes_are_named(self):
        weights = load_weights("random-small")
        for options, said in [
            ({"precision": "int4"}, "precision"),
            ({"threads": 0}, "threads"),
            ({"threads": "2"}, "threads is '2'"),
            ({"device": "gpu"}, "device is 'gpu', but should be auto, cpu or a torch device such as cuda or cuda:1$"),
            ({"device": "cuda:one"}, "device is 'cuda:one', but should be"),
            ({"device": "meta"}, "'meta' cannot be used"),  # torch has it, but it holds no numbers
            ({"device": "hpu"}, "'hpu' cannot be used"),  # torch knows it, but has nothing for it
        ]:
            with pytest.raises(InputError, match=said):
                Embedder(weights, **options)

    def test_the_cpu_is_the_same_by_name_and_as_torch_has_it(self):
        by_name, as_torch = (Embedder.load("en-small", device=cpu) for cpu in ("cpu", torch.device("cpu")))
        assert as_torch.info()["engine"] == by_name.info()["engine"]

    @pytest.mark.parametrize("made", [Embedder, LanguageModel])
    def test_a_name_in_the_place_of_weights_is_led_to_load(self, made):
        with pytest.raises(
            InputError, match=rf"{made.__name__}\('en-small'\): it is made of Weights\nhint: {made.__name__}\.load"
        ):
            made("en-small")

    @pytest.mark.parametrize("made", [Embedder, LanguageModel, Elmo])
    @pytest.mark.parametrize("what", [None, "", 5, ("options.json", "")])
    def test_what_names_no_model_is_told_so(self, made, what, tmp_path, monkeypatch):
        save_weights(lively(tiny()), tmp_path)
        monkeypatch.chdir(tmp_path)  # which "" would be, as a path
        with pytest.raises(InputError, match=f"{re.escape(repr(what))} names no model"):
            made.load(what)

    def test_torch_products_are_exact_even_where_tf32_is_allowed(self):
        from elmofire.model.exact_float32 import exact_float32

        torch.set_float32_matmul_precision("high")
        try:
            one, other = exact_float32(torch.device("cpu")), exact_float32(torch.device("cpu"))
            one.__enter__()
            other.__enter__()
            one.__exit__(None, None, None)  # as of two threads the one that came first may be done first
            assert torch.get_float32_matmul_precision() == "highest"
            other.__exit__(None, None, None)
            assert torch.get_float32_matmul_precision() == "high"
        finally:
            torch.set_float32_matmul_precision("highest")

    def test_autocast_around_it_changes_nothing(self):
        """Not in the words that are kept for later either."""
        outside, inside = (Embedder(lively(tiny()), device="cpu:0") for _ in range(2))
        state = outside.warm_state(SENTENCES)
        expected = outside.embed(SENTENCES), outside.embed(SENTENCES, state=state)[0]
        with torch.autocast("cpu", torch.bfloat16):
            found = inside.embed(SENTENCES), inside.embed(SENTENCES, state=state)[0]
        for one, other in zip([*found, inside.embed(SENTENCES)], [*expected, expected[0]], strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)

    @pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch's old switch alone")
    @pytest.mark.parametrize("where", ["torch.backends.cuda.matmul", "torch.backends"])
    def test_products_are_exact_too_where_tf32_is_allowed_by_torchs_newer_switch(self, where):
        program = (
            "import torch; from elmofire.model.exact_float32 import exact_float32; matmul = torch.backends.cuda.matmul\n"
            f"{where}.fp32_precision = 'tf32'\n"
            "with exact_float32(torch.device('cpu')): print(matmul.fp32_precision)\n"
            "print(matmul.fp32_precision)"
        )  # in a process of its own: torch refuses the old switch from then on
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["ieee", "tf32"]


def test_the_head_is_looked_at_but_not_kept():
    weights = lively(tiny(head=5))
    asked = []

    class Watched(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    elmo = Embedder(replace(weights, arrays=Watched(weights.arrays)), device="cpu")
    assert elmo.info()["head"] == 5
    assert asked.count("head.weight") == 1
    assert elmo._engine.config.head == 0
