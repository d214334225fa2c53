"""AllenNLP's `ElmoEmbedder` (0.4 to 0.9): token lists in, numpy arrays of all layers out."""
# ruff: noqa: FBT001  the signatures are AllenNLP's

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from elmofire.compat.allennlp.bilm import File, _ElmoBiLm, remove_sentence_boundaries
from elmofire.compat.allennlp.characters import batch_to_ids
from elmofire.compat.allennlp.layer import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from elmofire.errors import InputError
from elmofire.formats.files import written_aside
from elmofire.formats.weights import Array

DEFAULT_BATCH_SIZE = 64


class ElmoEmbedder:
    """All layers of each sentence, (L + 1, tokens, 2P). `stateful=True` carries the state from batch to batch, as it was.

    >>> import tempfile
    >>> from elmofire import load_weights, save_weights
    >>> folder = tempfile.mkdtemp()
    >>> save_weights(load_weights("random-small"), folder, to="hdf5")
    >>> ElmoEmbedder(f"{folder}/options.json", f"{folder}/weights.hdf5").embed_sentence(["Why", "?"]).shape
    (3, 2, 256)
    """

    def __init__(
        self,
        options_file: File = DEFAULT_OPTIONS_FILE,
        weight_file: File = DEFAULT_WEIGHT_FILE,
        cuda_device: int = -1,
        *,
        stateful: bool = False,
    ) -> None:
        self.elmo_bilm = _ElmoBiLm(options_file, weight_file, stateful=stateful)
        self.cuda_device = cuda_device
        if cuda_device >= 0:
            if not torch.cuda.is_available():
                raise InputError(f"cuda_device is {cuda_device}, but torch sees no GPU", hint="-1 is the CPU")
            self.elmo_bilm = self.elmo_bilm.cuda(cuda_device)

    def reset_states(self) -> None:
        self.elmo_bilm.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """(B, L + 1, T, 2P) padded with zeros, and the mask (B, T)."""
        output = self.elmo_bilm(batch_to_ids(batch))
        cut = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([layer for layer, _ in cut], dim=1), cut[0][1]

    def embed_sentence(self, sentence: Sequence[str]) -> Array:
        """(L + 1, tokens, 2P)"""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Array]:
        """One array (L + 1, tokens, 2P) per sentence; a batch of one empty sentence is not run."""
        if len(batch) == 1 and not batch[0]:
            return [np.zeros((self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim()), dtype=np.float32)]
        vectors, _ = self.batch_to_embeddings(batch)
        padded = vectors.cpu().numpy()
        return [padded[row, :, : len(sentence)] for row, sentence in enumerate(batch)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Array]:
        """Batches of sentences that follow each other, in order; what is not asked for is not computed."""
        following = iter(sentences)
        while batch := list(islice(following, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: File,
        output_format: str = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Lines of tokens between spaces -> HDF5, one dataset a line: `all` layers, the `top` one or their `average`.

        Datasets are named by the line's number from 0, and `sentence_to_index` tells which line a sentence is, unless
        `forget_sentences`; or, with `use_sentence_keys`, by the line itself. The input is closed.
        """
        import h5py

        if output_format not in ("all", "top", "average"):
            raise InputError(f"output_format is {output_format!r}, but should be all, top or average")
        with input_file:
            lines = [line.strip() for line in input_file]
        empty = [number for number, line in enumerate(lines) if not line]
        if empty:
            raise InputError(f"the input has empty lines at the indexes {empty}", hint="remove them")
        numbers: dict[str, str] = {}
        with written_aside(Path(output_file_path)) as aside, h5py.File(aside, "w") as file:
            arrays = self.embed_sentences((line.split() for line in lines), batch_size)
            for number, (line, array) in enumerate(zip(lines, arrays, strict=True)):
                key = line if use_sentence_keys else str(number)
                if key in file:
                    raise InputError(
                        f"the sentence {key!r} at index {number} is there twice", hint="do without use_sentence_keys"
                    )
                numbers[line] = key
                if output_format != "all":
                    array = array[-1] if output_format == "top" else array.mean(axis=0)
                file.create_dataset(key, data=array)
            if not forget_sentences and not use_sentence_keys:
                text = h5py.string_dtype(encoding="utf-8")
                file.create_dataset("sentence_to_index", (1,), dtype=text, data=json.dumps(numbers))
