"""The command line: one file per command, imported when it is called.

app                 arguments -> command, exit codes, error messages
bench               weft bench attention, engine, peers, switches, train, translate
chat                weft chat
completion          weft completion
convert             weft convert
demo                weft demo
doctor              weft doctor
embed               weft embed
eval                weft eval
generate            weft generate
info                weft info
list                weft list
look                weft look
plot                weft plot
pull                weft pull
rm                  weft rm
serve               weft serve
settings            weft settings
status              weft status
tokenize            weft tokenize
train               weft train
translate           weft translate
options             options that several commands share, and how their values are read
chat_session        the turns of a chat, what of them the model reads, and its answers
chat_terminal       a chat in a terminal: prompt, history, commands, a full context
chat_commands       /system, /retry, /undo, /set, /tokens, /help, /exit
chat_printer        answers on stdout, their numbers on stderr
chat_keyboard       Ctrl-C and typed keys while an answer is generated
chat_history        typed messages, kept for the next chat
line_wrapper        line breaks between words in streamed text
option_groups       one parameter that stands for several options
threads_option      --threads of every command
generation_options  sampling options, derived from SamplingParams
streams             standard streams that are closed or cannot be written
output              JSON, tables, status lines, progress bars
watch               generate --watch
live_screen         a terminal that is redrawn, with single keys
completion_json     completions as --json prints them
train_progress      progress of a training run
download_progress   progress of a download
curve_canvas        curves as text
run_metrics         metrics.jsonl of a run, as curves
completion_candidates   what the last word of a command line may become
recipe_names        recipes that come with Weft, by name
setting_list        the settings of a recipe as rows
settings_page       generates docs/settings.md
help_page           generates docs/help.md
look_host           the server as the routes below /look see it
serve_page          generates the tables of docs/serve.md
"""

from weft.cli.app import main as main
