"""Training: a recipe and text files -> a model folder.

recipe         settings of a run                    data/        files -> batches
run            `weft.train`: from files to folder   loop         the training loop, evaluation
objective      batch -> loss                        loss         chunked cross-entropy
rdrop          R-Drop loss                          optimizer    AdamW, Muon, schedules
checkpointing  exact resume, averaging              distributed  DDP and FSDP2
metrics_log    metrics.jsonl, TensorBoard           signals      SIGINT and SIGTERM
threads        threads of a resumed run
"""
