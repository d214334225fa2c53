"""AllenNLP's ELMo under its own names: change the import line, keep the rest.

| there | here |
| --- | --- |
| `allennlp.modules.elmo`: `Elmo`, `batch_to_ids`, `_ElmoBiLm`, `_ElmoCharacterEncoder` | `elmofire.compat.allennlp` |
| `allennlp.commands.elmo`: `ElmoEmbedder` | `elmofire.compat.allennlp` |
| `allennlp.modules.token_embedders`: `ElmoTokenEmbedder` | `elmofire.compat.allennlp` |
| `allennlp.modules.scalar_mix`: `ScalarMix` | `elmofire.compat.allennlp` |
| `allennlp.data.token_indexers.elmo_indexer`: `ELMoCharacterMapper`, `ELMoTokenCharactersIndexer` | `elmofire.compat.allennlp` |

State dicts have the old names and layouts. Every difference is in docs/migration.md.
"""

import elmofire.model  # noqa: F401  says which extra is missing, where torch is
from elmofire.compat.allennlp.bilm import _ElmoBiLm, _ElmoCharacterEncoder
from elmofire.compat.allennlp.characters import ELMoCharacterMapper, ELMoTokenCharactersIndexer, batch_to_ids
from elmofire.compat.allennlp.embedder import ElmoEmbedder
from elmofire.compat.allennlp.layer import Elmo, ElmoTokenEmbedder, ScalarMix

__all__ = [
    "ELMoCharacterMapper",
    "ELMoTokenCharactersIndexer",
    "Elmo",
    "ElmoEmbedder",
    "ElmoTokenEmbedder",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "batch_to_ids",
]
