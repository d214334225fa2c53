"""The compiled kernels are found, built and chosen; whatever is wrong with them, numpy is used and says why, once.

Most tests run in a checkout of their own, whose C sources are a few lines, in processes of their own.
"""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import elmofire
from elmofire.engine.compiled import build, library

SOURCE = Path(elmofire.__file__).parent
STUB = """
#define EXPORT __attribute__((visibility("default")))
EXPORT int elmofire_abi(void) { return %(abi)s; }
EXPORT const char *elmofire_source_hash(void) { return ELMOFIRE_SOURCE_HASH; }
EXPORT const char *elmofire_isa(void) { return ELMOFIRE_ISA; }
EXPORT int elmofire_answer(void) { return %(answer)s; }
"""
SAY = "from elmofire.engine.compiled import library; print(*library.available())"
ANSWER = "from elmofire.engine.compiled import library; print(library.load().handle.elmofire_answer())"
LOAD_TWICE = "from elmofire.engine.compiled import library; print(library.load(), library.load())"
USING_NUMPY = "elmofire: no compiled kernels, using numpy"

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")


def write_sources(checkout: Path, *, abi: int = library.ABI, answer: int = 1) -> None:
    sources = checkout / "src/elmofire/engine/c"
    (sources / "kernels.c").write_text(STUB % {"abi": abi, "answer": answer})


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(
        SOURCE, folder / "src/elmofire", ignore=shutil.ignore_patterns("libelmofire*", ".libelmofire*", "__pycache__")
    )
    (folder / "hatch_build.py").touch()
    for file in (folder / "src/elmofire/engine/c").iterdir():
        if file.name != "cpu.c":
            file.unlink()
    write_sources(folder)
    return folder


def start(checkout: Path, program: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(checkout / "src"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(checkout: Path, program: str, **environment: str) -> tuple[str, str]:
    process = start(checkout, program, **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), err.strip()


def libraries(checkout: Path) -> list[Path]:
    return sorted((checkout / "src/elmofire/engine/compiled").glob("libelmofire_*"))


def logging_compiler(folder: Path, *, refuses: str = "no such flag") -> tuple[Path, Path]:
    """A compiler that keeps a line for each call, and fails where it is given a flag."""
    log, script = folder / "calls", folder / "compiler"
    real = " ".join(build.find_compiler() or [])
    script.write_text(
        f'#!/bin/sh\necho called >> {log}\ncase "$*" in *"{refuses}"*) echo "error: unknown flag" >&2; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(0o755)
    return script, log


# This tree's own kernels


@needs_compiler
def test_where_a_compiler_is_the_compiled_kernels_serve():
    assert "portable" in library.available(), library.missing()
    best = library.load()
    assert best is not None
    assert best.name == library.available()[0]


@needs_compiler
@pytest.mark.parametrize("name", build.instruction_sets())
def test_every_set_that_this_processor_has_is_loaded(name):
    why = library.missing().get(name)
    if why == "this processor does not run it":
        pytest.skip(f"{name}: {why}")
    loaded = library.load(name)
    assert loaded is not None, why
    assert loaded.handle.elmofire_isa().decode() == name


@needs_compiler
@pytest.mark.parametrize("name", library.available())
def test_a_program_of_plain_loops_in_double_agrees_with_the_library(name, tmp_path):
    loaded = library.load(name)
    assert loaded is not None
    file, program = Path(loaded.handle._name), tmp_path / "selfcheck"
    source = Path(__file__).parent / "selfcheck/selfcheck.c"
    command = [*(build.find_compiler() or []), "-std=gnu11", "-O2", f"-I{build.SOURCES}", source, file]
    subprocess.run([*command, f"-Wl,-rpath,{file.parent}", "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(rf"{name}, \d+ lanes: \d+ numbers compared, 0 wrong\n", done.stdout)


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="only Linux lists the processor's features in a file")
def test_the_processor_is_asked_what_the_system_says_of_it(checkout):
    listed = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(listed[1].split()) if listed else set()
    expected = {
        "avx512_vnni": {"avx512_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
        "avx2": {"avx2", "fma", "f16c"},
        "portable": set(),
    }
    on_x86 = platform.machine() == "x86_64"
    names = [name for name, needed in expected.items() if needed <= flags and (on_x86 or name == "portable")]
    assert run(checkout, SAY) == (" ".join(names), "")


def test_the_abi_number_is_that_of_the_header():
    header = (build.SOURCES / "kernels.h").read_text()
    assert re.findall(r"#define ELMOFIRE_ABI (\d+)", header) == [str(library.ABI)]


# Building in a checkout


@needs_compiler
def test_changed_sources_are_compiled_at_the_next_start_and_unchanged_ones_are_not(checkout, tmp_path):
    compiler, log = logging_compiler(tmp_path)
    assert run(checkout, ANSWER, CC=str(compiler)) == ("1", "")
    built = len(log.read_text().splitlines())
    assert run(checkout, ANSWER, CC=str(compiler)) == ("1", "")
    assert len(log.read_text().splitlines()) == built == len(build.instruction_sets())
    write_sources(checkout, answer=2)
    assert run(checkout, ANSWER, CC=str(compiler)) == ("2", "")


@needs_compiler
def test_processes_that_start_at_once_compile_once(checkout, tmp_path):
    compiler, log = logging_compiler(tmp_path)
    processes = [start(checkout, SAY, CC=str(compiler)) for _ in range(4)]
    answers = {process.communicate(timeout=120) for process in processes}
    assert len(answers) == 1
    assert "portable" in answers.pop()[0]
    assert len(log.read_text().splitlines()) == len(build.instruction_sets())


@needs_compiler
@pytest.mark.skipif(build.machine() != "x86_64", reason="this architecture has one set")
def test_a_set_that_the_compiler_cannot_build_is_left_out_and_not_tried_again(checkout, tmp_path):
    compiler, log = logging_compiler(tmp_path, refuses="-mavx2")
    assert run(checkout, SAY, CC=str(compiler)) == ("portable", "")
    calls = log.read_text()
    reason = "from elmofire.engine.compiled import library; print(library.missing()['avx2'])"
    assert run(checkout, reason, CC=str(compiler)) == (
        f"{checkout}/src/elmofire/engine/compiled/libelmofire_avx2.so is not there",
        "",
    )
    assert log.read_text() == calls


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(100)], ids=["empty", "text", "header"])
def test_a_broken_library_is_built_anew_in_a_checkout(checkout, content):
    run(checkout, SAY)
    for file in libraries(checkout):
        file.write_bytes(content)
    assert run(checkout, ANSWER) == ("1", "")


# What cannot be used


def assert_numpy_is_used(checkout: Path, why: str, **environment: str) -> None:
    out, err = run(checkout, LOAD_TWICE, **environment)
    assert out == "None None"
    assert err.startswith(USING_NUMPY)
    assert why in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"PATH": ""}, "there is no C compiler (cc, gcc or clang)"),
        ({"CC": "no-such-compiler"}, "the compiler CC=no-such-compiler is not there"),
        ({"CC": "false"}, "false failed: exit code 1"),
    ],
    ids=["none", "none of that name", "one that fails"],
)
def test_without_a_compiler_numpy_is_used_and_says_so_once(checkout, environment, why):
    assert_numpy_is_used(checkout, why, **environment)


@needs_compiler
def test_a_mistake_in_the_sources_is_named_in_one_line(checkout):
    (checkout / "src/elmofire/engine/c/wrong.c").write_text("int wrong(void) { return missing_name; }\n")
    assert_numpy_is_used(checkout, "missing_name")


@needs_compiler
def test_a_library_with_another_abi_is_not_used(checkout):
    write_sources(checkout, abi=library.ABI + 98)
    assert_numpy_is_used(checkout, f"has ABI {library.ABI + 98}, and this version of the package needs {library.ABI}")


@needs_compiler
def test_an_installed_library_of_other_sources_is_not_used_and_nothing_is_compiled(checkout):
    run(checkout, SAY)
    (checkout / "hatch_build.py").unlink()
    assert run(checkout, ANSWER) == ("1", "")
    write_sources(checkout, answer=2)
    before = [file.stat().st_mtime_ns for file in libraries(checkout)]
    assert_numpy_is_used(checkout, "was built from other sources")
    assert [file.stat().st_mtime_ns for file in libraries(checkout)] == before


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"not a library", None], ids=["empty", "text", "another library"])
def test_an_installed_library_that_is_none_is_not_used(checkout, tmp_path, content):
    run(checkout, SAY)
    (checkout / "hatch_build.py").unlink()
    if content is None:
        (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
        other = tmp_path / "other.so"
        subprocess.run(
            [*(build.find_compiler() or []), "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(other)],
            check=True,
        )
        content = other.read_bytes()
    for file in libraries(checkout):
        file.write_bytes(content)
    assert_numpy_is_used(checkout, "cannot be loaded")


@needs_compiler
def test_a_library_under_another_name_is_not_used(checkout):
    run(checkout, SAY)
    engine = checkout / "src/elmofire/engine/compiled"
    portable = build.library_file(engine, "portable")
    for name in build.instruction_sets()[:-1]:
        shutil.copy(portable, build.library_file(engine, name))
    assert run(checkout, SAY) == ("portable", "")


def test_a_package_at_the_root_of_the_disk_is_no_checkout():
    assert library._refreshed(Path("/elmofire/engine/compiled")) == {}


# What is asked for by name


def test_numpy_can_be_asked_for_and_is_no_news(checkout):
    assert run(checkout, LOAD_TWICE, ELMOFIRE_CPU="numpy", CC="false") == ("None None", "")


@needs_compiler
def test_the_environment_names_a_set_and_an_argument_goes_before_it(checkout):
    program = "from elmofire.engine.compiled import library; print(library.load().name, library.load('numpy'))"
    assert run(checkout, program, ELMOFIRE_CPU="portable") == ("portable None", "")


@pytest.mark.parametrize("name", ["portable", "avx1024"])
def test_a_request_that_cannot_be_met_is_an_error(checkout, name):
    program = (
        "from elmofire.engine.compiled import library\nfrom elmofire import InputError\n"
        "try:\n    library.load({})\nexcept InputError as error:\n    print(error)"
    )
    why = "false failed: exit code 1" if name == "portable" else "there is no such set"
    hint = "\nhint: here: numpy; without a request the first of them serves"
    by_argument = run(checkout, program.format(repr(name)), CC="false")
    assert by_argument == (f"the instruction set {name} cannot be used: {why}{hint}", "")
    by_environment = run(checkout, program.format(""), CC="false", ELMOFIRE_CPU=name)
    assert by_environment == (f"ELMOFIRE_CPU = {name} cannot be used: {why}{hint}", "")
