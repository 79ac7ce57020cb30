"""Names of the files of a tokenizer, for readers of a folder that do not load it."""

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TARGET_FOLDER = "target"
"""Sub-folder with the tokenizer of the target side, where the two sides have different ones."""
