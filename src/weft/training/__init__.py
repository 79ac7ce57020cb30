"""Training: a recipe and text files -> a model folder.

recipe         settings of a run                    data/        files -> batches
run            `weft.train`: from files to folder   loop         the training loop, evaluation
run_opening    new, resumed and finished runs       run_record   run.json, settings that may change
run_plan       runs of a given time            probe        what a step takes
time_budget    how many steps fit              default_recipe  settings from the corpus
example_inputs  examples in the model folder
objective      batch -> loss                        loss         chunked cross-entropy
rdrop          R-Drop loss                          optimizer    AdamW, Muon, schedules
checkpointing  exact resume, averaging              delivery     which weights are the model
distributed    DDP and FSDP2                        metrics_log  metrics.jsonl, TensorBoard
observer       progress of a run for its caller     model_card   README.md of a finished run
signals        SIGINT and SIGTERM                   threads      threads of a resumed run
"""
