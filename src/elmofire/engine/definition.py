"""The definition: a biLM in float64, one token at a time, written to be read. Every faster path is tested against it.

A model is its config and its arrays by name, both plain: nothing but numpy is imported here.

Shapes: W characters of a token, E encoder width, P projection, C cells, T tokens (both boundary markers included), D directions.
"""

import numpy as np


def encode(config, arrays, ids):
    """One token -> its vector without context (E,).

    `ids` are its row in the word table, counted from 1, if the model has one, and its W character ids, if it reads them.
    """
    encoder = config.encoder
    features = []
    if encoder.words:
        row, ids = ids[0], ids[1:]
        features.append(_array(arrays, "encoder.words")[row - 1] if row else np.zeros(encoder.word_dim))
    if encoder.filters:
        features.append(spell(config, arrays, ids))
    z = np.concatenate(features)
    return _linear(arrays, "encoder.projection", z) if encoder.projection else z


def spell(config, arrays, ids):
    """Character ids (W,) -> what the filters and highways make of them."""
    encoder = config.encoder
    known = np.eye(encoder.characters) if encoder.one_hot else _array(arrays, "encoder.characters")
    table = np.vstack([np.zeros(encoder.character_dim), known])  # id 0, no token, is zeros
    characters = table[ids]  # (W, character_dim)
    pooled = []
    for k, (width, _) in enumerate(encoder.filters):
        weight = _array(arrays, f"encoder.convolutions.{k}.weight")  # (count, character_dim, width)
        bias = _array(arrays, f"encoder.convolutions.{k}.bias")
        windows = [characters[start : start + width] for start in range(len(ids) - width + 1)]
        responses = [np.einsum("ncw,wc->n", weight, window) + bias for window in windows]
        pooled.append(np.max(responses, axis=0))  # over all positions, those in the padding too
    z = np.concatenate(pooled)
    z = np.maximum(z, 0) if encoder.activation == "relu" else np.tanh(z)

    for k in range(encoder.highways):
        z = highway(config, arrays, f"encoder.highways.{k}", z)
    return z


def highway(config, arrays, name, z):
    """One highway over what the filters gave: relu whatever their activation."""
    transformed = np.maximum(_linear(arrays, f"{name}.transform", z), 0)
    if config.encoder.highway == "mlp":
        return transformed
    gate = sigmoid(_linear(arrays, f"{name}.gate", z))
    carry = sigmoid(_linear(arrays, f"{name}.carry", z)) if config.encoder.highway == "learned" else 1 - gate
    return gate * transformed + carry * z


def lstm_step(config, arrays, name, x, h, c):
    """One step of one layer, e.g. `forward.0`: input (E or P,) and state (P,), (C,) -> the new state. Its output is the new h."""
    bias = _array(arrays, f"{name}.bias").copy()
    bias[config.cells : 2 * config.cells] += config.forget_bias
    gates = _array(arrays, f"{name}.weight_ih") @ x + _array(arrays, f"{name}.weight_hh") @ h + bias
    i, f, g, o = np.split(gates, 4)
    c = _clip(sigmoid(f) * c + sigmoid(i) * np.tanh(g), config.cell_clip)
    h = sigmoid(o) * np.tanh(c)  # of the clipped cell
    if config.lstm_projection:  # without it there is no clip either
        h = _clip(_array(arrays, f"{name}.weight_hr") @ h, config.projection_clip)
    return h, c


def stack(config, arrays, direction, inputs, state):
    """One direction: inputs in its reading order -> the outputs of each layer, and the new state {layer: (h, c)}."""
    outputs, after = [], {}
    for k in range(config.layers):
        h, c = state[k]
        layer = []
        for x in inputs:
            h, c = lstm_step(config, arrays, f"{direction}.{k}", x, h, c)
            layer.append(h + x if config.skip_connections and k > 0 else h)  # the residual never enters the state
        outputs.append(layer)
        after[k] = (h, c)
        inputs = layer
    return outputs, after


def layers(config, arrays, tokens, state=None):
    """A sentence, boundaries included -> its layers 0..L, each (T, D * width), and the new state {direction: {layer: (h, c)}}."""
    state = state or zero_state(config)
    vectors = [encode(config, arrays, ids) for ids in tokens]
    halves, after = [[] for _ in range(config.layers)], {}
    for direction in config.directions:
        order = 1 if direction == "forward" else -1
        outputs, after[direction] = stack(config, arrays, direction, vectors[::order], state[direction])
        for k, layer in enumerate(outputs):
            halves[k].append(np.array(layer[::order]))
    return [np.hstack([np.array(vectors)] * len(config.directions)), *[np.hstack(half) for half in halves]], after


def zero_state(config):
    zero = {k: (np.zeros(config.projection), np.zeros(config.cells)) for k in range(config.layers)}
    return {direction: dict(zero) for direction in config.directions}


def log_probabilities(arrays, vector):
    """The head: one direction's top vector (P,) -> the log-probability of every word as the next one in that direction."""
    logits = _linear(arrays, "head", vector)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _clip(x, limit):
    return x if limit is None else np.clip(x, -limit, limit)


def _linear(arrays, name, x):
    return _array(arrays, f"{name}.weight") @ x + _array(arrays, f"{name}.bias")


def _array(arrays, name):
    return np.asarray(arrays[name], dtype=np.float64)
