"""Builds the kernels and checks every instruction set's library by the program selfcheck.c: `python run.py [--sanitize]`.

With CC = a cross compiler, `--target aarch64 --emulator "qemu-aarch64 -L FOLDER"` runs them as another processor would.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from elmofire.engine.compiled import build, library

PROGRAM = Path(__file__).parent / "selfcheck.c"
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the C kernels against plain loops in double.")
    parser.add_argument("--sanitize", action="store_true", help="under AddressSanitizer and UBSan")
    parser.add_argument("--output", type=Path, help="keep the libraries in this folder")
    parser.add_argument("--target", default=build.machine(), help="the architecture that CC compiles for")
    parser.add_argument("--emulator", default="", help="the command that runs programs of that architecture")
    arguments = parser.parse_args()
    compiler, emulator = build.find_compiler(), shlex.split(arguments.emulator)
    if compiler is None:
        sys.exit("there is no C compiler; name one in CC")
    print(
        f"sources {build.source_hash()}, {version(compiler)}{f', {version(emulator[:1])}' if emulator else ''}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as aside:
        flags = SANITIZE if arguments.sanitize else []
        folder = (arguments.output or Path(aside)).resolve()
        report = build.build(folder, extra_flags=["-Wall", "-Wextra", "-Werror", *flags], target=arguments.target)
        for name, problem in report.problems.items():
            print(f"{name}: not built: {problem}")
        failed = [*report.problems]
        for name, file in report.built.items():
            if not emulator and name in library.missing():
                print(f"{name}: not run: {library.missing()[name]}")
                continue
            program = Path(aside) / name
            compile_it = [
                *compiler,
                "-std=gnu11",
                "-O2",
                "-pthread",
                "-Wall",
                "-Wextra",
                "-Werror",
                *flags,
                f"-I{build.SOURCES}",
            ]
            subprocess.run([*compile_it, PROGRAM, file, f"-Wl,-rpath,{folder}", "-lm", "-o", program], check=True)
            done = subprocess.run([*emulator, program])
            if done.returncode:
                failed.append(name)
        print(f"failed on {arguments.target}: {', '.join(failed)}" if failed else f"all is well on {arguments.target}")
    return 1 if failed else 0


def version(command: list[str]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
