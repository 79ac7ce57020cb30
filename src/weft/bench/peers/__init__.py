"""The programs that Weft is compared with, each in its own process and environment.

install       a name -> its environment in .peers
build_llama_server
              compiles llama-server for its environment
child         runs under a peer's Python: one JSON object per line in, one per line out
weft, llama_cpp, vllm, transformers, ctranslate2
              what a child serves: a class System for one program
servers       HTTP servers by name: starting, stopping for a while, ending
vllm_bench, http_load
              load generators for servers: vLLM's, and one for machines without it
systems       the table of all that can be measured, Weft included; starting and asking a child

Weft's System is one of five and is measured as the others are: token ids in, token ids out, seconds
measured inside the child. All but install, servers and systems run outside of Weft's process.
"""
