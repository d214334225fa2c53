"""`elmofire demo`: one word in several sentences, and what each layer makes of it."""

import click

_SENTENCES = (
    ("She went to see the play at the theater .", "play"),
    ("The goalkeeper made a brilliant play in the last minute .", "play"),
    ("Children play in the garden .", "play"),
    ("The bank raised its interest rates .", "bank"),
    ("We sat on the bank of the river .", "bank"),
)


@click.command(short_help="One word in several sentences.")
def demo() -> None:
    """Embed a few sentences and compare one word's vectors across them."""
    import numpy as np

    from elmofire.embed.embedder import Embedder
    from elmofire.formats.names import RANDOM_SMALL

    elmo = Embedder.load(RANDOM_SMALL)
    click.echo(f"{RANDOM_SMALL}: the published small size with seeded random weights. It shows how things work;")
    click.echo("its vectors carry no meaning, because it was never trained.\n")
    tokens = [sentence.split() for sentence, _ in _SENTENCES]
    layers = elmo.embed(tokens, layers="all")
    for (sentence, word), vectors in zip(_SENTENCES, layers, strict=True):
        padded = f"{sentence:<58}"  # before the word is made bold: escape codes have a length too
        click.echo(f"  {padded.replace(word, click.style(word, bold=True), 1)} {vectors.shape}")
    click.echo("\n(layers, tokens, width). The same word in two sentences, as the cosine of its vectors:\n")
    click.echo(f"  {'':<44}" + "".join(f"{f'layer {j}':>10}" for j in range(elmo.config.layers + 1)))
    for a, b in ((0, 1), (0, 2), (1, 2), (3, 4)):
        word = _SENTENCES[a][1]
        x, y = (layers[n][:, tokens[n].index(word)] for n in (a, b))
        cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        near = [" ".join(tokens[n][max(0, (at := tokens[n].index(word)) - 1) : at + 2]) for n in (a, b)]
        click.echo(f"  {f'{near[0]} | {near[1]}':<44}" + "".join(f"{cosine:>10.3f}" for cosine in cosines))
    click.echo("\nLayer 0 reads the word alone, so it never differs; the others read its sentence.")
