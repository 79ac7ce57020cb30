"""Record everything that a refactoring must not change, and compare two recordings.

    python -m tests.baseline record OUT.json [--src CHECKOUT] [--steps N]
    python -m tests.baseline compare A.json B.json

A recording holds the losses of `recipes/dates.toml` and of small runs with other layers and
objectives, SHA-256 sums of all weights and optimizer states, and tokens, scores and
log-probabilities of 400 requests: greedy, sampled and beam search, with shared prefixes, several
samples per prompt, penalties, a regular expression, prompt lookup, all three prefix caches, a
quantized GGUF file with float32 and int8 activations, and without the compiled kernels.

Only the command line and the file formats are used, so that any two commits can be compared: run
`record` from this checkout with `--src` pointing at the other one. Floats are compared exactly.
Compare recordings of one machine only: processors and thread counts change the last bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Recording = dict[str, Any]

ROOT = Path(__file__).parents[1]
SEED = 1
DATES_STEPS = 120
NUM_THREADS = "2"
IGNORED = {"seconds", "tokens_per_second", "out", "threads"}
"""Fields that depend on the clock, the folder or the machine."""

TRAIN = """
[train]
steps = 12
batch_tokens = 768
evaluate_every = 6
save_every = 6
average = 2
"""
SMALL = """
[tokenizer]
kind = "bpe"
vocab_size = 600
"""
RECIPES = {
    "llama": """
[model]
width = 64
num_layers = 2
max_len = 128
attention = { kind = "gqa", num_heads = 4, num_kv_heads = 2 }
position = { kind = "rotary" }
feedforward = { kind = "swiglu", width = 96 }
norm = { kind = "rmsnorm", placement = "before" }
embedding = { tied = "none", scale = false }
""",
    "mla": """
[model]
width = 64
num_layers = 2
max_len = 128
attention = { kind = "mla", num_heads = 4, latent = { query_rank = 24 } }
position = { kind = "rotary" }
feedforward = { kind = "geglu", width = 96 }
norm = { kind = "rmsnorm", placement = "before" }
""",
    "alibi": """
[model]
width = 64
num_layers = 2
max_len = 128
attention = { kind = "mha", num_heads = 4, bias = true, pattern = { kind = "window", window = 9, \
full_every = 2 } }
position = { kind = "alibi" }
feedforward = { kind = "gelu", width = 96, bias = true }
norm = { kind = "layernorm", placement = "before" }
""",
    "encoder": """
[model]
width = 64
num_layers = 2
max_len = 64
attention = { kind = "mqa", num_heads = 4 }
position = { kind = "bucketed" }
feedforward = { kind = "relu", width = 96 }
norm = { kind = "layernorm", placement = "after" }
""",
    "translate": """
[model]
width = 64
num_layers = 2
max_len = 64
dropout = 0.2
attention = { kind = "gqa", num_heads = 4, num_kv_heads = 2, dropout = 0.1 }
position = { kind = "shaw" }
feedforward = { kind = "swiglu", width = 96 }
norm = { kind = "layernorm", placement = "after" }
""",
}
TRAIN_MORE = {
    "llama": ["accumulate = 2", 'optimiser = { kind = "muon", lr = 0.002 }'],
    "encoder": ["mask_share = 0.2"],
    "translate": ["rdrop = 3.0", "rdrop_from = 4", "bpe_dropout = 0.1"],
}
OBJECTIVE = {"encoder": "mlm"}

PREFIX = "Sunday, August 16, 2026 and Monday, "
PROMPTS = [
    *(PREFIX + text for text in ("August", "August 17", "17.", "the 17th of August 2026")),
    "S",
    "Friday",
    "21.03.14",
    "2026-08-16 2026-08-17 2026-08-18 2026-08-19 2026-08-20 2026-",
    "Sunday, August 16, 2026 " * 3,
    "   ",
    "samedi 3 mars 1984",
    "16. August 2026, 17. August 2026, 18. August",
]
"""Different lengths; the first four share pages of a prefix cache."""
SAMPLED = ["--temperature", "0.9", "--top-p", "0.95", "--top-k", "40", "--n", "3", "--seed", "7"]
GREEDY = ["--max-tokens", "16", "--logprobs", "3"]


def record(source: Path, steps: int) -> Recording:
    """Train models and run requests with the code of a checkout: two minutes on two idle cores."""
    with tempfile.TemporaryDirectory(prefix="weft-baseline-") as name:
        program, folder = Program(source, Path(name)), Path(name)
        recording: Recording = {"environment": environment()}
        recording |= record_dates(program, folder, steps)
        for kind in RECIPES:
            recording |= record_training(program, folder, kind)
        prompts = folder / "prompts.txt"
        prompts.write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
        recording |= record_decoders(program, prompts)
        recording |= record_quantized(program, prompts)
        recording |= record_translations(program, folder)
        recording |= record_pooled(program, folder)
        return recording


def environment() -> dict[str, str]:
    """What may change bits without any change of Weft."""
    import torch

    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


class Program:
    """The command `weft` of one checkout, run in one folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source.resolve(), folder
        if not (self.source / "src" / "weft").is_dir():
            sys.exit(f"{source}: no src/weft there. Name the root of a checkout of Weft.")

    def __call__(self, *arguments: str | Path, **variables: str) -> str:
        """The standard output of one command; what it printed on failure ends this program."""
        fixed = {
            "PYTHONPATH": str(self.source / "src"),
            "OMP_NUM_THREADS": NUM_THREADS,
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, "-m", "weft", *map(str, arguments)]
        print("weft", *command[3:], file=sys.stderr)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **fixed, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"exit code {done.returncode}: weft {' '.join(command[3:])}\n{done.stderr}")
        return done.stdout

    def lines(self, *arguments: str | Path, **variables: str) -> list[Any]:
        """The JSON objects that a command prints, one per line."""
        text = self(*arguments, "--json", **variables)
        return [without_ignored(json.loads(line)) for line in text.splitlines()]


def without_ignored(value: Any) -> Any:
    """A JSON value without the fields that differ from run to run."""
    if isinstance(value, dict):
        return {k: without_ignored(v) for k, v in value.items() if k not in IGNORED}
    return [without_ignored(v) for v in value] if isinstance(value, list) else value


def record_dates(program: Program, folder: Path, steps: int) -> Recording:
    """The recipe of the demo on the demo's data, with two evaluations."""
    program("demo", "--steps", "1", "--seed", SEED, "--json", "--out", "demo")
    recipe = program.source / "recipes" / "dates.toml"
    settings = {"steps": steps, "evaluate_every": steps // 2, "save_every": steps // 2}
    changes = [part for k, v in settings.items() for part in ("--set", f"train.{k}={v}")]
    program("train", recipe, *pairs_of("train", "--pairs"), *pairs_of("valid", "--valid"), *changes,
            "--out", "dates")  # fmt: skip
    data = {path.name: sha256(path.read_bytes()) for path in sorted(folder.glob("demo/data/*"))}
    return {"dates/data": data} | record_run("dates", folder)


def pairs_of(part: str, option: str) -> list[str]:
    return [option, f"demo/data/{part}.src", f"demo/data/{part}.tgt"]


def record_training(program: Program, folder: Path, kind: str) -> Recording:
    """A short run of one of RECIPES."""
    recipe = folder / f"{kind}.toml"
    more = "\n".join(TRAIN_MORE.get(kind, []))
    recipe.write_text(f"{RECIPES[kind]}{SMALL}{TRAIN}{more}\n", encoding="utf-8")
    files = [*pairs_of("train", "--pairs"), *pairs_of("valid", "--valid")]
    if kind != "translate":
        files = ["--text", "demo/data/train.src", "--valid", "demo/data/valid.src"]
        files += ["--objective", OBJECTIVE.get(kind, "lm")]
    program("train", recipe, *files, "--out", kind)
    return record_run(kind, folder)


def record_run(name: str, folder: Path) -> Recording:
    """Losses, settings, tokenizer and every tensor that a run left behind."""
    out = folder / name
    metrics = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    recording: Recording = {
        f"{name}/losses": [without_ignored(json.loads(line)) for line in metrics],
        f"{name}/scores": without_ignored(json.loads((out / "scores.json").read_text())),
        f"{name}/config": json.loads((out / "config.json").read_text()),
        f"{name}/run": without_ignored(json.loads((out / "run.json").read_text())),
        f"{name}/tokenizer": sha256((out / "tokenizer.json").read_bytes()),
    }
    for path in sorted(out.rglob("*.safetensors")):
        recording[f"{name}/tensors/{path.relative_to(out)}"] = tensor_sums(path)
    for path in sorted(out.rglob("state.json")):
        state = without_ignored(json.loads(path.read_text()))
        recording[f"{name}/state/{path.relative_to(out)}"] = state
    return recording


def tensor_sums(path: Path) -> dict[str, str]:
    """Type, shape and SHA-256 of each tensor in a file."""
    from safetensors.torch import load_file

    return {
        name: f"{tensor.dtype} {list(tensor.shape)} {sha256(tensor.numpy().tobytes())}"
        for name, tensor in sorted(load_file(path).items())
    }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def record_decoders(program: Program, prompts: Path) -> Recording:
    """Requests to decoders that take different paths through the engine."""
    recording = {}
    for kind in ("llama", "mla", "alibi"):
        generate = ("generate", kind, "--prompts", prompts)
        recording[f"{kind}/greedy"] = program.lines(*generate, *GREEDY)
        recording[f"{kind}/sampled"] = program.lines(*generate, *SAMPLED, "--max-tokens", "8")
    generate = ("generate", "llama", "--prompts", prompts, "--max-tokens", "12")
    penalties = ["--repetition-penalty", "1.2", "--presence-penalty", "0.3",
                 "--frequency-penalty", "0.2", "--min-p", "0.02"]  # fmt: skip
    recording["llama/penalties"] = program.lines(*generate, *penalties, "--temperature", "1.1")
    date = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    recording["llama/regex"] = program.lines(*generate, "--regex", date, "--logprobs", "0")
    recording["llama/lookup"] = program.lines(*generate, "--speculate", "--logprobs", "0")
    for cache in ("none", "hash"):
        recording[f"llama/{cache}"] = program.lines(
            *generate, "--prefix-cache", cache, *SAMPLED[:4], "--logprobs", "1"
        )
    for kind in ("llama", "mla"):
        recording[f"{kind}/modules"] = program.lines(
            "generate", kind, "--prompts", prompts, *GREEDY, WEFT_NATIVE="0"
        )
    return recording


def record_quantized(program: Program, prompts: Path) -> Recording:
    """A Hugging Face folder with random weights and its GGUF file in 8 bits."""
    write_hf_llama(program.folder / "hf", program.folder / "demo/data/train.src")
    program("convert", "hf", "q8_0.gguf", "--to", "gguf", "--dtype", "q8_0", "--json")
    gguf = (program.folder / "q8_0.gguf").read_bytes()
    recording: Recording = {"gguf/file": sha256(gguf)}
    for name, model, options in (
        ("hf/greedy", "hf", []),
        ("gguf/greedy", "q8_0.gguf", []),
        ("gguf/int8", "q8_0.gguf", ["--activations", "int8"]),
    ):
        generate = ("generate", model, "--prompts", prompts, *GREEDY, *options)
        recording[name] = program.lines(*generate)
    return recording


def write_hf_llama(folder: Path, corpus: Path) -> None:
    """A Llama with random weights and a byte-level tokenizer; none of Weft's code is involved."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = corpus.read_text(encoding="utf-8").splitlines()[:2000]
    tokenizer.train_from_iterator(lines, trainer)
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        initializer_range=0.2,  # wide enough that some tokens are much more likely than others
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.save_pretrained(folder)


def record_translations(program: Program, folder: Path) -> Recording:
    """Beam search, greedy search and sampling of two encoder-decoders."""
    lines = (folder / "demo/data/test.src").read_text(encoding="utf-8").splitlines()[:20]
    (folder / "sources.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    recording = {}
    for kind in ("dates", "translate"):
        translate = ("translate", kind, "sources.txt", "--max-tokens", "15")
        recording[f"{kind}/greedy"] = program.lines(*translate)
        recording[f"{kind}/beam"] = program.lines(*translate, "--beam", "4", "--n-best", "3")
    sampled = ("--temperature", "1", "--top-k", "10", "--seed", "7", "--n-best", "2")
    recording["dates/sampled"] = program.lines("translate", "dates", "sources.txt", *sampled)
    recording["dates/long"] = program.lines(
        "translate", "dates", "sources.txt", "--beam", "5", "--length-penalty", "0.6"
    )
    return recording


def record_pooled(program: Program, folder: Path) -> Recording:
    """Vectors of texts, and the loss of texts under a decoder."""
    embed = ("embed", "encoder", "sources.txt")
    return {
        "encoder/embed": program.lines(*embed),
        "encoder/embed modules": program.lines(*embed, WEFT_NATIVE="0"),
        "llama/eval": program.lines("eval", "llama", "--text", "demo/data/valid.src"),
        "dates/eval": program.lines("eval", "dates", *pairs_of("valid", "--pairs")),
    }


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """A line for each place where two JSON values differ, in order."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            place = f"{path}: {key}" if path else key
            if key not in a or key not in b:
                yield f"{place}: only in the {'first' if key in a else 'second'} recording"
            else:
                yield from differences(a[key], b[key], place)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{path}: {len(a)} entries, then {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif repr(a) != repr(b):  # repr: 1 is not 1.0, and nan is nan
        yield f"{path}: {exact(a)} != {exact(b)}"


def exact(value: Any) -> str:
    """A value with all its bits."""
    return f"{value!r} ({value.hex()})" if isinstance(value, float) else repr(value)


def num_requests(recording: Recording) -> int:
    """Number of completions, translations and vectors in a recording."""
    return sum(len(value) for value in recording.values() if isinstance(value, list)) - sum(
        len(value) for name, value in recording.items() if name.endswith("/losses")
    )


def compare(first: Path, second: Path) -> int:
    """Print the first difference and the number of all; exit code 1 if there is one."""
    a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (first, second))
    if a.pop("environment") != b.pop("environment"):
        print("recorded with different processors or versions: bits may differ", file=sys.stderr)
    lines = list(differences(a, b))
    if not lines:
        print(f"identical: {len(a)} entries, {num_requests(a)} requests")
        return 0
    print(lines[0])
    names = list(dict.fromkeys(line.split(":")[0].split("[")[0] for line in lines))
    print(f"{len(lines)} differences in {len(names)} of {len(a)} entries: {', '.join(names)}")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.baseline", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--src", type=Path, default=ROOT, help="root of a checkout of Weft")
    recorder.add_argument("--steps", type=int, default=DATES_STEPS, help="of the dates recipe")
    comparer = commands.add_parser("compare")
    comparer.add_argument("first", type=Path)
    comparer.add_argument("second", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return compare(options.first, options.second)
    recording = record(options.src, options.steps)
    options.out.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")
    print(f"{options.out}: {len(recording)} entries, {num_requests(recording)} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
