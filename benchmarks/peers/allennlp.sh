#!/usr/bin/env bash
# Recreate the AllenNLP 2.10.1 environment in the folder given as $1.
#   PYTHON=python3.11 benchmarks/peers/allennlp.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="$1"
"${PYTHON:-python3.11}" -m venv "$venv"
py="$venv/bin/python"

# 1. torch (CPU build where pip is configured for it); the constraint keeps every later step from replacing it
"$py" -m pip install torch==2.13.0
printf 'torch==2.13.0\n' > "$venv/constraints.txt"

# 2. the packages ELMo's import chain needs
"$py" -m pip install -c "$venv/constraints.txt" -r "$here/allennlp.txt"

# 3. allennlp without its (outdated) pins
"$py" -m pip install --no-deps allennlp==2.10.1

# 4. stub torchvision: enough for ELMo
site="$("$py" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
mkdir -p "$site/torchvision"
printf '__version__ = "0.0.0"\n' > "$site/torchvision/__init__.py"

# 5. check
"$py" -c 'import torch, allennlp.version; from allennlp.modules.elmo import Elmo, _ElmoBiLm, batch_to_ids; print("ok: allennlp", allennlp.version.VERSION, "torch", torch.__version__)'
