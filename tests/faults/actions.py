"""What the forked children of the server run: commands of Weft, saves from Python, and descriptions
of what they wrote. Every function takes strings, works in the current folder, prints its result
and returns an exit code, as a command does."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.engine.tiny import LINES, tiny
from weft.checkpoint import hub, hub_files
from weft.checkpoint.atomic import new_folder, sync
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.hub_files import Count, Repository, RepositoryFile, part_size
from weft.checkpoint.pulled_models import resolve
from weft.checkpoint.weft_folder import Checkpoint, save_folder, write_contents
from weft.checkpoint.writer_lock import lock_path, writer_lock
from weft.cli.app import exit_code, main, sentence
from weft.engine.cache_file import fingerprint
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.sampling.params import SamplingParams
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer

SIZES = {
    "num_layers": 1,
    "max_len": 40,
    "attention": {"num_heads": 2},
    "position": {"kind": "rotary"},
    "feedforward": {"kind": "swiglu", "bias": False, "width": 32},
    "norm": {"kind": "rmsnorm"},
}
"""A llama, which can be converted to other formats."""
REPOSITORY = "org/model"
RECIPE = """
[model]
width = 16
num_layers = 1
max_len = 32
attention = { num_heads = 2 }
feedforward = { kind = "relu", width = 32 }
[tokenizer]
kind = "bpe"
vocab_size = 280
[train]
steps = 3
batch_tokens = 100
save_every = 1
evaluate_every = 2
average = 2
valid_share = 0.2
"""
PROMPTS = [(5, 9, 30, 7, 8, 6, 40, 41, 9), (5, 9, 30, 7, 50, 51, 52, 53)]


def weft(*args: str) -> int:
    """A command line."""
    return main(args)


def reported(function: Callable[..., None]) -> Callable[..., int]:
    """Exceptions as the command line reports them."""

    @wraps(function)
    def run(*args: str) -> int:
        try:
            function(*args)
        except Exception as error:
            print(sentence(error), file=sys.stderr)
            return exit_code(error)
        return 0

    return run


@reported
def write_inputs() -> None:
    """A recipe, a text and pairs to train on."""
    Path("recipe.toml").write_text(RECIPE)
    Path("corpus.txt").write_text("".join(f"{line} {n}\n" for n in range(12) for line in LINES))
    for language, word in (("en", "cats"), ("de", "Katzen")):
        Path(f"pairs.{language}").write_text("".join(f"{n} {word} {n + 1}\n" for n in range(36)))


def checkpoint(seed: str, width: str, template: str | None) -> Checkpoint:
    """A small decoder; models of different widths have different tokenizers."""
    model = tiny("decoder", seed=int(seed), width=int(width), **SIZES).model
    lines = [f"{line} {width}" for line in LINES]
    tokenizer, scores = byte_level_tokenizer(lines), {"seed": int(seed)}
    return Checkpoint(model, tokenizer, "lm", scores, chat_template=template)


def byte_level_tokenizer(lines: list[str]) -> Tokenizer:
    """A kind that all formats can hold."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    return Tokenizer(backend, SpecialTokens(end="<end>"))


@reported
def save_model(path: str, seed: str, width: str = "16", template: str | None = None) -> None:
    save_folder(Path(path), checkpoint(seed, width, template))


@reported
def pull_model(path: str, seed: str) -> None:
    """Replace a folder as a whole, as `weft pull` does."""
    folder = Path(path)
    with writer_lock(folder, lock_path(folder)), new_folder(folder, replace=True) as new:
        write_contents(new, checkpoint(seed, "16", None))


@reported
def pull_repository(seed: str) -> None:
    """`weft pull` of a repository that is on this disk; each seed is a commit."""
    os.environ["WEFT_CACHE"] = str(Path.cwd())
    contents = read_folder(checkpoint(seed, "16", None))
    hashes = {name: sha256(content).hexdigest() for name, content in contents.items()}
    described = [
        RepositoryFile(name, len(contents[name]), digest, None) for name, digest in hashes.items()
    ]
    commit = sha256(seed.encode()).hexdigest()[:40]
    repository = Repository(REPOSITORY, commit, tuple(described))

    def blocks(_: Repository, file: RepositoryFile, part: Path, count: Count) -> Iterator[int]:
        with part.open("ab") as out:
            yield out.write(contents[file.name][part_size(part) :])

    hub.read_repository = lambda name, revision: repository
    hub_files.file_blocks, hub_files.retried_errors = blocks, lambda: ()
    hub.pull(REPOSITORY, lambda line: None, revision=commit)


def read_folder(source: Checkpoint) -> dict[str, bytes]:
    """The files of a model folder, written where nothing is recorded."""
    with TemporaryDirectory() as folder:
        write_contents(Path(folder), source)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


@reported
def describe_pulled() -> None:
    os.environ["WEFT_CACHE"] = str(Path.cwd())
    describe_model.__wrapped__(str(resolve(REPOSITORY)))


@reported
def describe_model(path: str) -> None:
    """Everything a model consists of, hashed, and where a part of it comes from."""
    loaded = load_checkpoint(path)
    print("weights and settings", fingerprint(loaded.model))
    text = loaded.tokenizer.backend.to_str()
    print("tokenizer", sha256(text.encode()).hexdigest())
    print("task", loaded.task, "template", loaded.chat_template)


@reported
def replace_file(path: str, content: str, *steps: str) -> None:
    """Replace a file in the given steps, which may be wrong ones."""
    target, temporary = Path(path), Path(f"{path}.1.new")
    for step in steps:
        match step:
            case "write":
                temporary.write_text(content)
            case "write in place":
                target.write_text(content)
            case "append":
                with target.open("a") as file:
                    file.write(content)
            case "mark":
                Path("complete").touch()
            case "sync file":
                sync(temporary)
            case "sync folder":
                sync(target.parent)
            case "make folder":
                target.parent.mkdir(exist_ok=True)
            case "rename":
                temporary.replace(target)
            case "remove":
                temporary.unlink(missing_ok=True)


@reported
def describe_file(path: str) -> None:
    """Fails if the file is marked as complete and is not there."""
    if Path("complete").exists() or Path(path).exists():
        print(Path(path).read_text())


@reported
def change_in_many_ways() -> None:
    """Changes of the file `a` that need its offset, and calls that Weft does not make today."""
    with open("a", "r+b", buffering=0) as file:
        file.read(2)
        file.write(b"after two bytes")
        file.seek(-3, os.SEEK_END)
        second = os.dup(file.fileno())
        os.write(second, b"at the last three")
        os.close(second)
        os.pwrite(file.fileno(), b"P", 1)
        os.writev(file.fileno(), [b"two ", b"buffers"])
        os.pwritev(file.fileno(), [b"V", b"W"], 3)
        os.ftruncate(file.fileno(), 30)
        os.posix_fallocate(file.fileno(), 0, 33)
        os.fdatasync(file.fileno())
    os.truncate("a", 32)
    os.mkdir("f")
    handle = os.open("f", os.O_RDONLY)
    os.mkdir("g", dir_fd=handle)
    os.rename("a", "b", dst_dir_fd=handle)
    os.symlink("b", "c", dir_fd=handle)
    os.link("f/b", "d")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write_numbers, ("f/one", "f/two")))
    os.unlink("one", dir_fd=handle)
    os.rmdir("g", dir_fd=handle)
    os.close(handle)
    os.sync()


def write_numbers(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        for number in range(50):
            file.write(b"%d\n" % number)


@reported
def write_by_mapping() -> None:
    with open("a", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 33


@reported
def write_by_another_process() -> None:
    subprocess.run(["sh", "-c", "echo > a"], check=True)


@reported
def copy_in_the_kernel() -> None:
    shutil.copyfile("a", "b")


def engine() -> Engine:
    small = tiny("decoder", width=16, **SIZES)
    return Engine(small.model, small.tokenizer, EngineConfig(page_size=4, cache_gib=1e-4))


@reported
def save_cache(path: str, num_prompts: str) -> None:
    """The cache after some prompts."""
    running = engine()
    for prompt in PROMPTS[: int(num_prompts)]:
        running.submit(GenerationRequest(prompt, 2, None, SamplingParams()))
        while not running.is_idle:
            running.step()
    running.save_cache(path)


@reported
def describe_cache(path: str) -> None:
    print(engine().load_cache(path))
