"""Documents -> a file of token ids that all processes of a run map into memory.

    OUT/tokens/train/ids.bin       int32, all documents concatenated
    OUT/tokens/train/starts.npy    offset of each document, and the end of the last

Rank 0 encodes the text and writes; each process then reads only its own samples from the file. The
folder gets its name when it is complete: an interrupted encoding starts again, and a resumed run
finds the ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.atomic import new_folder
from weft.core.errors import DataError
from weft.text.corpus import raw_lines
from weft.text.tokenizer import Tokenizer

ENCODE_BATCH = 1000
"""Documents per call of the tokenizer."""
ID_BYTES, OFFSET_BYTES = 4, 8
NPY_BYTES = 256
"""Size of starts.npy without the offsets of documents, at most."""


@dataclass(frozen=True)
class TokenFile:
    """The concatenated token ids of a corpus and the offsets of its documents."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def write(cls, folder: Path, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        """Encode into `folder`, unless it exists. Blank documents are left out."""
        if folder.is_dir():
            return
        lengths: list[int] = []
        with new_folder(folder) as new:
            with (new / "ids.bin").open("wb") as file:
                kept = (text for text in texts if text.strip())
                while batch := list(islice(kept, ENCODE_BATCH)):
                    documents = tokenizer.encode_batch(batch)
                    lengths += [len(document) for document in documents]
                    file.write(np.concatenate(documents).astype(np.int32).tobytes())
            starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            if starts[-1] < 2:
                raise DataError(f"the text has {starts[-1]} tokens: there is nothing to predict.")
            content = BytesIO()  # numpy does not report all errors of writing to a file
            np.save(content, starts.astype(np.int64))
            (new / "starts.npy").write_bytes(content.getvalue())

    @staticmethod
    def max_bytes(paths: Iterable[Path], tokenizer: Tokenizer) -> int:
        """Size that the files of `write` have at most for these text files, if normalization does
        not make the text longer: an id per byte, and for each line the special tokens and its
        offset."""
        before, after = tokenizer.frame
        line_bytes = ID_BYTES * (len(before) + len(after)) + OFFSET_BYTES
        num_bytes = 2 * NPY_BYTES  # for training and for validation
        for path in paths:
            num_bytes += sum(
                ID_BYTES * len(line) + line_bytes for line in raw_lines(path, str(path))
            )
        return num_bytes

    @classmethod
    def open(cls, folder: Path) -> TokenFile:
        """Map the files of `write` into memory."""
        if not folder.is_dir():
            raise DataError(
                "the token ids that rank 0 wrote are missing. All processes of a run need the same "
                "--out, on a disk that they share.",
                folder,
            )
        ids = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r")
        return cls(ids, np.load(folder / "starts.npy"))
