"""Long random campaigns: `make soak`, or `python -m tests.soak CAMPAIGN --count N --seed S`.

campaigns           the table of campaigns: a seed -> one case, which passes or raises
runner              runs the cases in child processes, stores progress and failures, prints rates
child               the program of a child process
scheduler           random scheduler steps with all invariants checked after each
(tests/engine/mixed_requests.py: requests that are cancelled, dropped, interrupted and that fail)
kills               a training run that SIGKILL ends at random times, and its resume
memory              small requests to one `weft serve`, whose memory stays the same
checkpoints         mutated checkpoint files: loaded, or refused in one sentence
checkpoint_bases    the files that are mutated
checkpoint_edits    the mutations
malformed_http      malformed HTTP requests over raw sockets: no 5xx, and nothing in the log
http_requests       the requests that are mutated
http_edits          the mutations

A new campaign is a function `run_case(seed)` and an entry of the table.
"""
