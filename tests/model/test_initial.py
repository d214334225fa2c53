"""Initial values are those that the 2018 trainer drew."""

from dataclasses import replace

import numpy as np
import pytest
from models import tiny

from elmofire.formats.config import BilmConfig, EncoderConfig, tensor_shapes
from elmofire.formats.initial import initial_weights

CONFIG = BilmConfig(
    encoder=EncoderConfig(width=64, filters=((1, 60), (3, 140)), character_dim=16, highways=1),
    cells=256,
    projection=64,
    head=500,
)
N = 200


def spread_of(name, config=CONFIG):
    array = initial_weights(config, seed=3).arrays[name].astype(np.float64)
    return array, array.std(), np.abs(array).max()


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("encoder.characters", 1.0),
        ("encoder.convolutions.1.weight", 0.05),
        ("forward.0.weight_ih", (6 / (2 * 64 + 4 * 256)) ** 0.5),
        ("backward.1.weight_hh", (6 / (2 * 64 + 4 * 256)) ** 0.5),
        ("forward.1.weight_hr", (6 / (256 + 64)) ** 0.5),
    ],
)
def test_uniform_ones_fill_their_range(name, limit):
    array, deviation, largest = spread_of(name)
    assert 0.99 * limit < largest <= limit
    assert deviation == pytest.approx(limit / 3**0.5, rel=0.03)
    assert abs(array.mean()) < 0.05 * limit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder.highways.0.gate.weight", N**-0.5),
        ("encoder.highways.0.transform.weight", N**-0.5),
        ("encoder.projection.weight", N**-0.5),
        ("head.weight", 64**-0.5),
    ],
)
def test_normal_ones_have_their_deviation_and_tails(name, expected):
    _, deviation, largest = spread_of(name)
    assert deviation == pytest.approx(expected, rel=0.03)
    assert largest > 3.2 * expected


def test_tanh_filters_are_normal():
    config = BilmConfig(encoder=EncoderConfig(width=64, filters=((3, 900),), activation="tanh"), cells=8, projection=64)
    assert spread_of("encoder.convolutions.0.weight", config)[1] == pytest.approx((1 / 48) ** 0.5, rel=0.03)


def test_biases_are_zero_but_for_the_highway_gates():
    config = replace(CONFIG, encoder=replace(CONFIG.encoder, highway="learned"))
    expected = {"encoder.highways.0.gate.bias": -2.0, "encoder.highways.0.carry.bias": 2.0}
    biases = [name for name in tensor_shapes(config) if name.endswith("bias")]
    assert expected.keys() < set(biases)
    for name in biases:
        assert (initial_weights(config, seed=1).arrays[name] == expected.get(name, 0.0)).all()


def test_one_seed_is_one_model_whatever_is_read_first():
    one, other = initial_weights(tiny(), seed=5), initial_weights(tiny(), seed=5)
    backwards = {name: other.arrays[name] for name in reversed(list(other.arrays))}
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, backwards[name])
    assert (one.arrays["encoder.characters"] != initial_weights(tiny(), seed=6).arrays["encoder.characters"]).any()
    assert (one.arrays["forward.0.weight_hh"] != one.arrays["backward.0.weight_hh"]).any()
