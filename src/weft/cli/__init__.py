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
chat_session        ChatSession: the turns of a conversation, its context, and answers
chat_terminal       a chat in a terminal: prompt, history, commands, a full context
chat_commands       /system, /retry, /undo, /set, /tokens, /help, /exit
chat_printer        prints answers to stdout, token counts and speed to stderr
chat_keyboard       Ctrl-C and typed keys while an answer is generated
chat_history        history of typed messages, in a file
line_wrapper        line breaks between words in streamed text
option_groups       a parameter of a command that stands for several options
threads_option      --threads of every command
generation_options  sampling options, derived from SamplingParams
streams             standard streams: UTF-8, closed streams, full disks
output              JSON, tables, status lines, progress bars
watch               generate --watch
live_screen         full-screen terminal output with single-key input
completion_json     completions as --json prints them
train_progress      progress of a training run
download_progress   progress of a download
curve_canvas        curves as text
run_metrics         metrics.jsonl of a run, as curves
completion_candidates   shell completion: candidates for the last word of a command line
recipe_names        recipes that come with Weft, by name
setting_list        the settings of a recipe as rows
settings_page       generates docs/settings.md
help_page           generates docs/help.md
look_host           connects the routes below /look with the server
serve_page          generates the tables of docs/serve.md
"""

from weft.cli.app import main as main
