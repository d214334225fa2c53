"""`compat.allennlp.Elmo` beside AllenNLP 2.10.1's own, in eval mode: the same files, the same sentences, every combination of switches.

Run: python benchmarks/allennlp_compat.py FOLDER/bin/python, where FOLDER was made by benchmarks/peers/allennlp.sh
"""

import itertools
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from records import keep

from elmofire import save_weights
from elmofire.compat.allennlp import Elmo, batch_to_ids
from elmofire.formats.config import BilmConfig, small

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models import lively

BOUND = 1e-5
SEED = 12
MODELS = {"small": small(), "original": BilmConfig()}
CALLS = [  # batches of changing size, so that rows of the carried state come, stay and wait
    [
        ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "."],
        ["Stick", "to", "the", "plan"],
        ["Why", "?"],
    ],
    [["naïve", "日本語", "x" * 60, "", "<S>"]],
    [["The", "plan"], [], ["The", "lazy", "dog", "jumps"], ["Why", "not", "?"]],
]
SWITCHES = [
    {"num_output_representations": mixes, "do_layer_norm": layer_norm, "keep_sentence_boundaries": boundaries}
    for mixes, layer_norm, boundaries in itertools.product((1, 2), (False, True), (False, True))
]

# Both sides run this. AllenNLP always carries its state; what is stateless here is reset before each call there.
ANSWERS = """
def answers(make, calls, switches, states, stateful):
    found = {}
    for n, switch in enumerate(switches):
        elmo = make(dropout=0.5, **switch).eval()
        elmo.load_state_dict(torch.load(states[switch["num_output_representations"]], weights_only=True), strict=True)
        for call, batch in enumerate(calls):
            if not stateful:
                elmo._elmo_lstm._elmo_lstm.reset_states()
            with torch.no_grad():
                output = elmo(batch_to_ids(batch))
            found[f"{n}/{call}/mask"] = output["mask"].numpy()
            for k, representation in enumerate(output["elmo_representations"]):
                found[f"{n}/{call}/{k}"] = representation.numpy()
    return found
"""

THEIRS = (
    """
import json, sys
import numpy as np, torch
from functools import partial
from allennlp.modules.elmo import Elmo, batch_to_ids
"""
    + ANSWERS
    + """
options, weights, out, given = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
states = {int(mixes): file for mixes, file in given["states"].items()}
for stateful in (False, True):
    found = answers(partial(Elmo, options, weights), given["calls"], given["switches"], states, stateful)
    np.savez(f"{out}-{int(stateful)}.npz", **found)
"""
)


def main(python: str) -> None:
    names: dict = {"torch": torch, "batch_to_ids": batch_to_ids}
    exec(ANSWERS, names)
    for model, config in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            save_weights(lively(config, seed=SEED), folder, to="hdf5")
            files = [f"{folder}/options.json", f"{folder}/weights.hdf5"]
            states = {mixes: f"{folder}/{mixes}.th" for mixes in (1, 2)}
            for mixes, file in states.items():
                torch.save(_with_learned_mixes(Elmo(*files, mixes)), file)
            given = json.dumps({"calls": CALLS, "switches": SWITCHES, "states": states})
            subprocess.run([python, "-W", "ignore", "-c", THEIRS, *files, f"{folder}/theirs", given], check=True)
            for stateful in (False, True):
                ours = names["answers"](
                    partial(Elmo, *files, stateful=stateful),
                    CALLS,
                    SWITCHES,
                    states,
                    stateful,
                )
                with np.load(f"{folder}/theirs-{int(stateful)}.npz") as theirs:
                    for n, switch in enumerate(SWITCHES):
                        pairs = {key: (ours[key], theirs[key]) for key in ours if key.startswith(f"{n}/")}
                        _compare(model, switch, pairs, stateful=stateful)


def _with_learned_mixes(elmo: Elmo) -> dict[str, torch.Tensor]:
    """A state dict as training leaves it, under the old names: AllenNLP loads it strictly too."""
    generator = torch.Generator().manual_seed(SEED)
    state = elmo.state_dict()
    for name in state:
        if "scalar_mix" in name:
            state[name] = state[name] + torch.randn(1, generator=generator) / 2
    return state


def _compare(model: str, switch: dict, pairs: dict, *, stateful: bool) -> None:
    assert all(np.array_equal(x, y) for key, (x, y) in pairs.items() if key.endswith("mask"))
    vectors = [(key, x, y) for key, (x, y) in pairs.items() if not key.endswith("mask")]
    first = max(float(np.abs(x - y).max()) for key, x, y in vectors if key.split("/")[1] == "0")
    later = max(float(np.abs(x - y).max()) for key, x, y in vectors if key.split("/")[1] != "0")
    keep(
        "allennlp_compat",
        model=model,
        **switch,
        state="carried" if stateful else "reset",
        seed=SEED,
        precision="float32",
        calls=[len(batch) for batch in CALLS],
        first_call=first,
        later_calls=later,
        largest_value=max(float(np.abs(y).max()) for _, _, y in vectors),
        holds=max(first, later) <= BOUND,
    )
    if max(first, later) > BOUND:
        sys.exit(f"{model}, {switch}: differs from AllenNLP by {max(first, later)}")


if __name__ == "__main__":
    main(sys.argv[1])
