"""Compiles the C kernels while the package is built: into the wheel, or beside the sources of an editable install.

Without a compiler there is a plain wheel, whose numpy path does the same more slowly; that never fails a build.
"""

import importlib.util
import platform
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):
    """Adds the shared libraries to a wheel, and with them the platform's tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = _build_module(Path(self.root))
        if version == "editable":
            self._say(compiler.build(compiler.FOLDER))
            return
        self._aside = tempfile.TemporaryDirectory(prefix="elmofire-")
        report = compiler.build(Path(self._aside.name))
        self._say(report)
        for file in report.built.values():
            build_data["force_include"][str(file)] = f"elmofire/engine/compiled/{file.name}"
        if report.built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"  # no Python ABI is in it: one wheel serves every version

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._aside.cleanup()

    def _say(self, report: Any) -> None:
        for name, problem in report.problems.items():
            self.app.display_warning(f"elmofire: the {name} kernels are not built: {problem}")
        if not report.built:
            self.app.display_warning("elmofire: no compiled kernels in this build; numpy will serve, which is slower")


def _build_module(root: Path) -> ModuleType:
    """`engine/compiled/build.py` by its path: the package around it cannot be imported before its dependencies are installed."""
    spec = importlib.util.spec_from_file_location("elmofire_build", root / "src/elmofire/engine/compiled/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform_tag() -> str:
    """The plain tag of this machine: what the libraries were compiled on, with no promise about older systems."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return tag.replace(
        "universal2", platform.machine()
    )  # a macOS Python may hold two architectures; the kernels have one
