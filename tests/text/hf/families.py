"""One function a family: writes its folder, with the files and settings of a real repository."""

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers

from tests.text.hf.folders import (
    END,
    FAIRSEQ,
    byte_level,
    entry,
    pieces_of,
    spm_bytes,
    template,
    wordpiece,
    write,
)

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def llama(folder: Path, legacy: bool | None = False) -> Path:
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": {"__type": "AddedToken"} | entry("<s>"),
        "eos_token": {"__type": "AddedToken"} | entry("</s>"),
        "unk_token": {"__type": "AddedToken"} | entry("<unk>"),
    }
    config |= {} if legacy is None else {"legacy": legacy}
    return write(folder, "llama", config, tokenizer__model=spm_bytes("llama"))


def gemma(folder: Path) -> Path:
    config = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
    }
    return write(folder, "gemma", config, tokenizer__model=spm_bytes("gemma"))


def t5(folder: Path) -> Path:
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "eos_token": "</s>"}
    return write(folder, "t5", config, spiece__model=spm_bytes("t5"))


def xlm_roberta(folder: Path) -> Path:
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(spm_bytes("unigram"))
    return write(folder, "xlm-roberta", config)


def bert(folder: Path, lower: bool) -> Path:
    vocabulary = wordpiece(lower).get_vocab()
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    lines = "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__))
    return write(folder, "bert", config, vocab__txt=lines)


def bert_cased(folder: Path) -> Path:
    return bert(folder, lower=False)


def bert_uncased(folder: Path) -> Path:
    return bert(folder, lower=True)


def gpt2(folder: Path) -> Path:
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    folder.mkdir(parents=True, exist_ok=True)
    byte_level().model.save(str(folder))
    return write(folder, "gpt2", {"add_prefix_space": False}, special_tokens_map__json=names)


def bart(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    byte_level(FAIRSEQ).model.save(str(folder))
    names = {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
        "pad_token": "<pad>", "cls_token": "<s>",
        "mask_token": {"content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False,
                       "normalized": False},
    }  # fmt: skip
    return write(folder, "bart", {"model_max_length": 1024}, special_tokens_map__json=names)


def qwen2(folder: Path) -> Path:
    """vocab.json and merges.txt; the special tokens are only in the config."""
    folder.mkdir(parents=True, exist_ok=True)
    model = byte_level((), QWEN2_WORDS).model
    model.save(str(folder))
    size = byte_level((), QWEN2_WORDS).get_vocab_size()
    names = (END, "<|im_start|>", "<|im_end|>")
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": END,
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": {str(size + i): entry(name) for i, name in enumerate(names)},
    }
    return write(folder, "qwen2", config)


def json_folder(folder: Path, model_type: str, backend: Backend, config: dict) -> Path:
    backend.decoder = decoders.ByteLevel()
    return write(folder, model_type, config, tokenizer__json=backend.to_str())


def llama3_json(folder: Path) -> Path:
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    backend = copy_of(byte_level(names, LLAMA3_WORDS))
    backend.post_processor = template(backend, names[0])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[0],
        "eos_token": names[2],
        "added_tokens_decoder": {str(i): entry(name) for i, name in enumerate(names)},
    }
    return json_folder(folder, "llama", backend, config)


def qwen2_json(folder: Path) -> Path:
    names = (END, "<|im_start|>", "<|im_end|>")
    backend = copy_of(byte_level(names, QWEN2_WORDS))
    backend.normalizer = normalizers.NFC()
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": names[2], "pad_token": END}
    return json_folder(folder, "qwen2", backend, config)


def smollm_json(folder: Path) -> Path:
    """Digits one by one, then GPT-2's pattern."""
    names = (END, "<|im_start|>", "<|im_end|>")
    backend = copy_of(byte_level(names))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": END,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    }
    return json_folder(folder, "llama", backend, config)


def copy_of(backend: Backend) -> Backend:
    return Backend.from_str(backend.to_str())


def marian(folder: Path, codes: tuple[str, ...] = (">>fra<<", ">>deu_Latn<<")) -> Path:
    """Two sides that know different words and characters."""
    source = spm_bytes("unigram", stop=150, vocab_size=300)
    target = spm_bytes("unigram", start=60, vocab_size=350)
    result = dict.fromkeys([*pieces_of(source), *pieces_of(target)])
    own = [piece for piece in result if piece not in ("<s>", "</s>", "<unk>")]
    vocabulary = {name: i for i, name in enumerate(["</s>", "<unk>", *own, *codes, "<pad>"])}
    return write(
        folder,
        "marian",
        {"source_lang": "eng", "target_lang": "mul", "tokenizer_class": "MarianTokenizer"},
        source__spm=source,
        target__spm=target,
        vocab__json=vocabulary,
    )


FAMILIES = {
    "llama": llama,
    "gemma": gemma,
    "t5": t5,
    "xlm-roberta": xlm_roberta,
    "bert cased": bert_cased,
    "bert uncased": bert_uncased,
    "gpt2": gpt2,
    "bart": bart,
    "qwen2": qwen2,
    "llama3 json": llama3_json,
    "qwen2 json": qwen2_json,
    "smollm json": smollm_json,
    "marian": marian,
}
