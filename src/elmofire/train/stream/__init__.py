"""A prepared corpus becomes updates: numpy arrays that a training step takes.

    text.py (words of sentences) ─► sentences.py or lanes.py (a `Reading`: which words stand in which cells is a plan)
                                 ─► building.py (a plan's batches), negatives.py ─► stream.py (updates) ─► feed.py (ahead, in threads)

Everything is a function of the recipe's seed and the stream's position, whatever the number of threads, ranks and parts.
"""
