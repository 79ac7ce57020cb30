"""`weft embed`: one vector per line of text."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.options import BatchTokens, Device, File, Model, ready_model
from weft.cli.output import print_json, progress
from weft.cli.translate import CHUNK, chunks, warn_truncated


def command(
    model: Model,
    file: File = "-",
    batch_tokens: BatchTokens = 4096,
    device: Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="One object per line: text, vector.")
    ] = False,
) -> None:
    """One vector of length 1 per line of text; texts with similar meanings have similar vectors.

    \b
    Example:
      echo "A man rides a bicycle." | weft embed minilm
      weft embed minilm sentences.txt --json > vectors.jsonl
    """
    from weft.engine.config import EngineConfig
    from weft.text.corpus import read_lines

    loaded = ready_model(model, device, EngineConfig.for_batches(batch_tokens))
    loaded.tokenizer.report.has_warned = True  # printed below, for all lines together
    for lines in chunks(read_lines(file, allow_empty=file == "-"), CHUNK):
        with progress("embedding", len(lines)) as step:
            vectors_BD = loaded.embed(lines, step)
        for line, vector in zip(lines, vectors_BD.tolist(), strict=True):
            if json:
                print_json({"text": line, "vector": vector})
            else:
                print(" ".join(f"{number:.6f}" for number in vector))
    warn_truncated(loaded)
