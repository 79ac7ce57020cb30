"""`weft embed`: lines in, one vector a line out."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.options import BatchTokens, Device, File, Model, ready_model
from weft.cli.output import print_json, progress
from weft.cli.translate import CHUNK, chunks, say_cut


def command(
    model: Model,
    file: File = "-",
    batch_tokens: BatchTokens = 4096,
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One object a line: text, vector.")] = False,
) -> None:
    """One vector of length 1 for every line of text: close vectors, close meanings.

    \b
    Example:
      echo "A man rides a bicycle." | weft embed minilm
      weft embed minilm sentences.txt --json > vectors.jsonl
    """
    from weft.engine.config import EngineConfig
    from weft.text.corpus import read_lines

    reader = ready_model(model, device, EngineConfig.for_batches(batch_tokens))
    reader.tokenizer.report.has_warned = True  # below, with the counts of all lines
    for lines in chunks(read_lines(file, allow_empty=file == "-"), CHUNK):
        with progress("embedding", len(lines)) as step:
            vectors_BD = reader.embed(lines, step)
        for line, vector in zip(lines, vectors_BD.tolist(), strict=True):
            if json:
                print_json({"text": line, "vector": vector})
            else:
                print(" ".join(f"{number:.6f}" for number in vector))
    say_cut(reader)
