"""Raw text becomes tokens, and tokens become ids."""
