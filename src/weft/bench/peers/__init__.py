"""The programs that Weft is measured against, each in a process and an environment of its own.

    install       a name -> its environment in .peers
    child         runs under a peer's Python: one JSON object a line in, one a line out
    weft, llama_cpp, vllm, transformers, ctranslate2
                  what a child serves: a class System, which knows one program
    peer          the other end: starts a child and asks it
    systems       the table of all that can be measured, Weft among them
    forms         one model -> the GGUF file and the Hugging Face folder that peers read

Weft's own System is one of five and is measured as the others are: token ids in, token ids out,
seconds taken inside the child. All but install, peer, systems and forms run outside of Weft.
"""
