"""Build hook: a wheel contains the native library for each x86-64 variant (native/compiler.py).

An editable install contains none: it compiles for its machine at first use. Neither does a wheel
that is built on another platform or without a compiler, which is then a pure Python wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibraries(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        command = os.environ.get("CXX") or shutil.which("g++")
        platform = sysconfig.get_platform()
        if command is None or platform != "linux-x86_64":
            self.app.display_warning(
                f"the wheel contains no native libraries: platform {platform}, compiler {command}"
            )
            return
        compiler = load_compiler(Path(self.root))
        # kept from build to build: the names contain a hash of the sources
        folder = Path(self.root) / "build" / "native"
        for variant in compiler.VARIANTS:
            name = f"weft-{variant.name}-{compiler.fingerprint(command, variant)}.so"
            if not compiler.is_intact(folder / name):
                self.app.display_info(f"compiling {name}")
                compiler.compile_library(command, variant, folder / name)
            build_data["force_include"][str(folder / name)] = f"weft/native/prebuilt/{name}"
        build_data["pure_python"] = False
        # for any Python 3: the libraries do not use its ABI
        build_data["tag"] = f"py3-none-{platform.replace('-', '_')}"


def load_compiler(root: Path) -> ModuleType:
    """native/compiler.py by its path: importing weft would need its dependencies."""
    path = root / "src" / "weft" / "native" / "compiler.py"
    spec = importlib.util.spec_from_file_location("weft_native_compiler", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up
    spec.loader.exec_module(module)
    return module
