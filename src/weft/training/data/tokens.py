"""Documents -> a file of ids that all processes of a run map into memory.

    OUT/tokens/train/ids.bin       int32, document after document
    OUT/tokens/train/starts.npy    where each begins, and the end of the last

The first process encodes the text, piece by piece, and writes; each process then reads from the
file only the samples that are its own. The folder takes its name when it is complete, so a run
that is cut off while it encodes begins that part again, and one that goes on finds the ids there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.atomic import new_folder
from weft.core.errors import DataError
from weft.text.tokenizer import Tokenizer

PIECE = 1000
"""Documents that are encoded at once."""


@dataclass(frozen=True)
class TokenFile:
    """The ids of a corpus, flat, and the places where its documents begin."""

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def write(cls, folder: Path, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        """Encode into `folder`, unless it is there already. Blank documents are left out."""
        if folder.is_dir():
            return
        lengths: list[int] = []
        with new_folder(folder) as new:
            with (new / "ids.bin").open("wb") as file:
                kept = (text for text in texts if text.strip())
                while piece := list(islice(kept, PIECE)):
                    documents = tokenizer.encode_batch(piece)
                    lengths += [len(document) for document in documents]
                    file.write(np.concatenate(documents).astype(np.int32).tobytes())
            starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            if starts[-1] < 2:
                raise DataError(f"the text has {starts[-1]} tokens: there is nothing to predict.")
            np.save(new / "starts.npy", starts.astype(np.int64))

    @classmethod
    def open(cls, folder: Path) -> TokenFile:
        """Map what `write` wrote."""
        if not folder.is_dir():
            raise DataError(
                "the ids that the first process wrote are not here. All processes of a run need "
                "the same --out, on a disk that they share.",
                folder,
            )
        flat = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r")
        return cls(flat, np.load(folder / "starts.npy"))
