"""How the model in the package, en-small, was made: its text, the search for its recipe, the n-gram beside it."""
