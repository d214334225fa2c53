"""The biLM as the language model it is: perplexity, scores of sentences, and words that could stand in another's place."""
