"""Raw text becomes a prepared corpus: a folder of memory-mapped word ids that training reads.

    sources ─► blocks of lines ─► tokens, by block (blocks.py, on all cores: the one pass over the text)
            ─► which sentences stay, and where (selection.py, overlaps.py)
            ─► words by frequency, vocabulary (words.py) ─► shards of ids (shards.py) ─► CORPUS, whole, by one rename

`prepare.py` is the door, `settings.py` says how a corpus can be made; `job.py` runs these steps and goes on where a killed run was;
`reader.py` is what the trainer opens.
"""
