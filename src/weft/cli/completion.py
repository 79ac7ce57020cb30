"""`weft completion`: prints the completion script of a shell.

The script calls `weft completion SHELL -- WORDS`, which prints a candidate per line, for zsh and
fish with a description behind a tab. The line ":files" asks for file names too, which the shell
knows how to complete.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Shell = Annotated[
    Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="The shell.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- WORDS", help="Used by the script: complete the last word."),
]

FILES = ":files"
SCRIPTS = {
    "bash": """\
# Completion of weft in bash. In ~/.bashrc: eval "$(weft completion bash)"
_weft_completion() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    if [ "$line" = ":files" ]; then
      compopt -o filenames 2> /dev/null
      while IFS= read -r line; do COMPREPLY+=("$line"); done \\
        < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    else
      COMPREPLY+=("$line")
    fi
  done < <("${COMP_WORDS[0]/#\\~/$HOME}" completion bash -- \\
    "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}  # runs/en-de@best is one word
complete -F _weft_completion weft
""",
    "zsh": """\
#compdef weft
# Completion of weft in zsh. In ~/.zshrc, after compinit: eval "$(weft completion zsh)"
_weft() {
  local line files=0
  local -a values typed
  typed=("${(@Q)words[2,CURRENT]}")
  for line in "${(@f)$(${(Q)words[1]} completion zsh -- "${(@)typed}" 2> /dev/null)}"; do
    if [[ $line == ":files" ]]; then
      files=1
    elif [[ -n $line ]]; then
      values+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    fi
  done
  (( ${#values} )) && _describe weft values
  (( files )) && _files
}
if [[ $funcstack[1] == _weft ]]; then _weft "$@"; else compdef _weft weft; fi
""",
    "fish": """\
# Completion of weft in fish: weft completion fish > ~/.config/fish/completions/weft.fish
function __weft_completion
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] completion fish -- $words[2..-1] "$current" 2> /dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c weft -f -a "(__weft_completion)"
""",
}


def command(shell: Shell, words: Words = None) -> None:
    """Print the script that completes commands, options, pulled models, recipes and runs.

    \b
    Example:
      eval "$(weft completion bash)"
      eval "$(weft completion zsh)"
      weft completion fish > ~/.config/fish/completions/weft.fish

    The first line is for ~/.bashrc, the second one for ~/.zshrc, after compinit.
    """
    if words is None:
        print(SCRIPTS[shell], end="")
        return
    from weft.cli.completion_candidates import complete

    candidates = complete(words)
    for value, description in candidates.values.items():
        print(value if shell == "bash" else f"{value}\t{description}")
    if candidates.has_files:
        print(FILES)
