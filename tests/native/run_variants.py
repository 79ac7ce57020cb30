"""`make test-native`: kernel tests with every variant of the library, sanitizers, and the wheel.

    python -m tests.native.run_variants [VARIANT ...]

Compiles all variants of wheels (compiler.py), runs the tests with those that this processor can run
and prints the others. Another run uses the address and undefined-behavior sanitizers, whose
run-time libraries are preloaded because the Python interpreter is not linked with them. At the end
a wheel is built and run without a compiler ("wheel").
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from weft.native.compiler import SANITIZED, VARIANTS, Variant, compile_library

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = (
    *("tests/native", "tests/nn/test_*.py", "tests/nn/attention/test_paged*.py"),
    "tests/engine/test_compiled*.py",
)
"""Globs: tests whose results are computed by the compiled kernels."""
DIRECT_TESTS = ("tests/native", "tests/nn/attention/test_paged*.py")
"""Of these, the tests that call kernels directly: for sanitizers, which are slow, and for AVX-512,
whose code `make test` runs as well where the processor has it."""
NARROW_VARIANTS = ("x86-64", "x86-64-v3")
COMMON = ["--ignore=tests/native/test_compiler.py", "-m", "not slow", "-p", "no:cacheprovider"]
IS_LOADED = "from weft.native.library import native; assert native() is not None"
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter and torch free little at exit
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def main(names: list[str]) -> int:
    selected = [v for v in (*VARIANTS, SANITIZED) if not names or v.name in names]
    results = {variant.name: run_variant(variant) for variant in selected}
    if not names or "wheel" in names:
        results["wheel"] = run_wheel()
    for name, result in results.items():
        report(f"{name}: {result}")
    return 0 if all("FAILED" not in result for result in results.values()) else 1


def run_variant(variant: Variant) -> str:
    """Compile and test; a phrase for the summary."""
    begin = time.monotonic()
    if missing := variant.missing_features():
        with tempfile.TemporaryDirectory() as folder:
            compile_library("g++", variant, Path(folder) / "weft.so")
        return f"compiled but not run, this processor lacks {', '.join(missing)}"
    report(f"{variant.name}: running")
    is_sanitized = variant is SANITIZED
    paths = matching(KERNEL_TESTS if variant.name in NARROW_VARIANTS else DIRECT_TESTS)
    environment = {**os.environ, "WEFT_ISA": variant.name}
    if is_sanitized:
        environment |= {"LD_PRELOAD": preloaded(), **SANITIZER_OPTIONS}
    # many tests are skipped without the library: fail here instead
    subprocess.run([sys.executable, "-c", IS_LOADED], env=environment, cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", *COMMON, *paths]
    status = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    return f"{'FAILED' if status else 'passed'} in {time.monotonic() - begin:.0f} s"


def run_wheel() -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "tests/native/test_wheel.py"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return "FAILED" if status else "passed"


def matching(globs: tuple[str, ...]) -> list[str]:
    """Existing paths; every glob must match, so that a renamed test file is noticed."""
    paths = {glob: sorted(ROOT.glob(glob)) for glob in globs}
    unmatched = [glob for glob, actual in paths.items() if not actual]
    assert not unmatched, f"no test files match {unmatched}: adapt {Path(__file__).name}"
    return [str(path.relative_to(ROOT)) for actual in paths.values() for path in actual]


def preloaded() -> str:
    """Run-time libraries of the sanitizers, address sanitizer first."""
    names = ("libasan.so", "libubsan.so")
    commands = [["g++", f"-print-file-name={name}"] for name in names]
    return ":".join(subprocess.check_output(c, text=True).strip() for c in commands)


def report(line: str) -> None:
    print(f"== {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
