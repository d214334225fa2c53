"""Examples in modules that need triton are left out where it is not installed, as it is not on every platform."""

import importlib.util

collect_ignore_glob = (
    []
    if importlib.util.find_spec("triton")
    else [
        "src/elmofire/kernels/lstmp_gpu/*",
        "src/elmofire/kernels/*_triton.py",
        "src/elmofire/kernels/*_programs.py",
        "src/elmofire/train/step/*_triton.py",
    ]
)
