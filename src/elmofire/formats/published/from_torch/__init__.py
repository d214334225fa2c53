"""Models whose numbers are in files that torch wrote: ELMoForManyLangs and AllenNLP. They are read without torch."""
