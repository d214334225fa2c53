"""Small biLMs of every kind, for hypothesis."""

from hypothesis import strategies as st

from elmofire.formats.config import HIGHWAYS, BilmConfig, EncoderConfig
from elmofire.text.characters import BYTES
from elmofire.text.vocabulary import Vocabulary

_sizes = st.integers(1, 7)


@st.composite
def encoders(draw, width: int, *, as_in_2018: bool = False) -> EncoderConfig:
    """From words, or from characters with or without a projection."""
    if draw(st.booleans()):
        return EncoderConfig(width=width, filters=(), projection=False, words=draw(st.integers(1, 9)), word_dim=width)
    projection = draw(st.booleans())
    longest = draw(st.integers(3, 9))
    counts = draw(st.lists(_sizes, min_size=1, max_size=4)) if projection else [width]
    one_hot = not as_in_2018 and draw(st.booleans())
    return EncoderConfig(
        width=width,
        filters=tuple((draw(st.integers(1, longest)), count) for count in counts),
        character_dim=BYTES if one_hot else draw(_sizes),
        one_hot=one_hot,
        max_characters=longest,
        activation=draw(st.sampled_from(["relu", "tanh"])),
        highways=draw(st.integers(0, 3)),
        highway="tied" if as_in_2018 else draw(st.sampled_from(list(HIGHWAYS))),
        projection=projection,
    )


@st.composite
def configs(draw, *, as_in_2018: bool = False) -> BilmConfig:
    """Any biLM, or one that 2018's format can hold without a change."""
    projection = draw(_sizes)
    lstm_projection = draw(st.booleans())
    clips = st.none() | st.floats(2**-10, 100, width=32)
    ways = (
        [("forward", "backward"), ("forward",)]
        if as_in_2018
        else [("forward", "backward"), ("forward",), ("backward",)]
    )
    encoder = draw(encoders(projection if as_in_2018 else draw(_sizes), as_in_2018=as_in_2018))
    return BilmConfig(
        encoder=encoder,
        directions=draw(st.sampled_from(ways)),
        layers=draw(st.integers(1, 3)),
        cells=draw(_sizes) if lstm_projection else projection,
        projection=projection,
        lstm_projection=lstm_projection,
        cell_clip=draw(clips),
        projection_clip=draw(clips),
        skip_connections=draw(st.booleans()),
        forget_bias=1.0 if as_in_2018 else draw(st.sampled_from([0.0, 1.0, 2.5])),
        head=draw(st.sampled_from([0, encoder.words or 8])),
    )


def vocabulary_of(config: BilmConfig) -> Vocabulary | None:
    """Words enough for the model's tables."""
    count = config.encoder.words or config.head
    return Vocabulary(f"word{number}" for number in range(count)) if count else None
