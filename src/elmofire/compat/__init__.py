"""Other libraries' names on elmofire's parts: `compat.allennlp`, `compat.manylangs`, `compat.simple_elmo`, `compat.tf_hub`."""
