"""`weft serve`: where settings come from, and what is refused before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.cli import serve as module
from weft.cli.app import Command, main
from weft.core.errors import ConfigError, UsageError
from weft.serve.api_keys import ApiKeys
from weft.serve.config import ServeConfig, serve_settings, unknown_variables
from weft.serve.model_names import parse_models, pulled_models, served_name

COMMANDS = {"serve": Command("weft.cli.serve", "Serve models over HTTP.")}


def test_an_option_wins_over_a_variable_and_that_over_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "::1"\nmax_queued = 7\ncors = ["a"]\n[alias]\nx = "m"\n')
    environ = {"WEFT_SERVE_PORT": "2", "WEFT_SERVE_CORS": "b, c", "WEFT_SERVE_LENIENT": "1"}
    options = {"port": "3", "defaults": ["temperature=0.5", "top_k=3"], "host": None}
    options["languages"] = ["demo=en:de"]
    config = serve_settings(options, environ, file)
    assert (config.port, config.host, config.max_queued) == (3, "::1", 7)
    assert config.cors == ("b", "c") and config.lenient and config.alias == {"x": "m"}
    assert config.defaults == {"temperature": 0.5, "top_k": 3}
    assert config.language_pairs == {"demo": ("en", "de")}
    assert serve_settings({}, {}) == ServeConfig()
    assert serve_settings({"cache": "0.5"}, {}).cache == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": "x"}, "port is 'x'"),
        ({"defaults": ["temperature"]}, "defaults is 'temperature': it must be NAME=VALUE"),
        ({"defaults": ["temperatur=1"]}, "temperature"),
        ({"languages": ["demo"]}, "languages is 'demo': it must be NAME=VALUE, such as demo=en:de"),
        ({"languages": ["demo=en"]}, "--languages 'demo=en' is not NAME=SRC:TGT"),
        ({"languages": ["demo=en:D"]}, "'D' is not a language code"),
        ({"tls_cert": "a"}, "both are needed"),
        ({"metrics_prefix": "a-b"}, "metrics_prefix is 'a-b'"),
        ({"log_format": "xml"}, "log_format is 'xml'"),
    ],
)
def test_a_wrong_value_is_named(options, message):
    with pytest.raises((ConfigError, UsageError)) as raised:
        serve_settings(options, {})
    assert message in str(raised.value)
    assert "Change ." not in str(raised.value), "a sentence without the name of a setting"


def test_the_file_of_settings_may_be_a_variable(tmp_path):
    (tmp_path / "a.toml").write_text("port = 1\n")
    (tmp_path / "b.toml").write_text("port = 2\n")
    environ = {"WEFT_SERVE_CONFIG": str(tmp_path / "a.toml"), "WEFT_SERVE_PROT": "3"}
    assert serve_settings({}, environ).port == 1
    assert serve_settings({}, environ, tmp_path / "b.toml").port == 2
    assert unknown_variables(environ) == ["WEFT_SERVE_PROT"]


def test_an_unknown_name_in_the_file_is_reported(tmp_path):
    (tmp_path / "x.toml").write_text("prot = 1\n")
    with pytest.raises(ConfigError, match="port"):
        serve_settings({}, {}, tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--workers", "4"], 2, "--workers is 4: one process serves all"),
        (["no/such/model"], 1, "no/such/model: there is no such model"),
        (["--host", "0.0.0.0", "."], 2, "host is 0.0.0.0, which other machines can reach"),
        (["a=.", "a=."], 2, "two models have the name 'a'"),
        (["--api-keys", "no-file", "."], 1, "no-file: there is no such file"),
        ([], 2, "no model is named, and none is installed"),
    ],
)
def test_what_is_refused(arguments, code, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    assert main(["serve", *arguments], COMMANDS) == code
    assert message in capsys.readouterr().err


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr(module, "LIBRARIES", ("fastapi", "no_such_library"))
    with pytest.raises(UsageError, match=r"needs no_such_library.*pip install 'weft\[serve\]'"):
        module.check_libraries()


def test_names_of_models(tmp_path, monkeypatch):
    assert parse_models(["runs/demo@best", "a/b.gguf", "x=y"]) == {
        "demo": "runs/demo@best",
        "b": "a/b.gguf",
        "x": "y",
    }
    assert served_name("smollm2") == "smollm2"
    with pytest.raises(UsageError, match="'=y' is not NAME=MODEL"):
        parse_models(["=y"])
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    (tmp_path / "models" / "org--m").mkdir(parents=True)
    (tmp_path / "models" / ".part").mkdir()
    assert pulled_models() == {"org/m": "org/m"}


def test_a_key_in_the_environment_is_one_more(tmp_path):
    file: Path = tmp_path / "keys"
    file.write_text("# comment\nalice = k1\n")
    keys = ApiKeys.configured(file, {"WEFT_API_KEY": "k2"})
    names = {keys.caller({"x-api-key": key}).name for key in ("k1", "k2")}
    assert names == {"alice", "WEFT_API_KEY"}
    several = ApiKeys.configured(file, {"WEFT_API_KEY": " k2, k1,k3,k2,"})
    names = {key: several.caller({"x-api-key": key}).name for key in ("k1", "k2", "k3")}
    assert names == {"k1": "alice", "k2": "WEFT_API_KEY", "k3": "WEFT_API_KEY_3"}
    assert not ApiKeys.configured(None, {})
