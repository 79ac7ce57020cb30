"""/translate and /languages: the translations of the Python API, in LibreTranslate's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny, tiny_folder
from tests.serve.server import RunningServer, make_service, running
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import UsageError
from weft.serve.api_keys import ApiKeys
from weft.serve.config import ServeConfig
from weft.serve.libretranslate import ServedLanguage, TranslateResult
from weft.serve.model_loading import build_service

TEXTS = ["the cat sat", "a dog ate two apples", "mat"]
BODY: dict[str, Any] = {"q": "the cat sat", "source": "en", "target": "de"}


def translator(source: str, target: str, seed: int = 3) -> Checkpoint:
    return replace(tiny(seed=seed), languages=(source, target))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {
        "en-de": translator("en", "de"),
        "de-en": translator("de", "en", 4),
        "fr-en": translator("fr", "en", 5),
        "unknown": tiny(seed=6),
        "decoder": tiny("decoder"),
    }
    with running(make_service(models)) as one:
        yield one


def translate(server: RunningServer, **changes: Any) -> Any:
    answer = server.post("/translate", {**BODY, **changes})
    assert answer.status_code == 200, answer.json()
    TranslateResult.model_validate(answer.json())
    return answer.json()


def expected(server: RunningServer, texts: list[str], model: str = "en-de", **options: Any) -> Any:
    return server.service.models.get(model).loaded.translate(texts, **options)


def test_a_text_is_translated_by_the_model_of_its_languages(server):
    assert translate(server) == {"translatedText": expected(server, TEXTS[:1])[0]}
    value = translate(server, source="DE", target="en")
    assert value == {"translatedText": expected(server, TEXTS[:1], "de-en")[0]}
    server.wait_idle()


def test_a_list_is_a_list(server):
    value = translate(server, q=TEXTS, beam=4)
    assert value == {"translatedText": expected(server, TEXTS, beam=4)}
    assert translate(server, q=[]) == {"translatedText": []}


def test_lines_are_translated_one_by_one_and_empty_ones_stay(server):
    value = translate(server, q="the cat sat\n\n  \r\nmat\n")
    first, last = expected(server, ["the cat sat", "mat"])
    assert value["translatedText"] == f"{first}\n\n\n{last}\n"
    assert translate(server, q="")["translatedText"] == ""


@pytest.mark.parametrize("is_list", [False, True])
def test_alternatives_are_the_next_best_of_the_beam(server, is_list):
    loaded = server.service.models.get("en-de").loaded
    best = [[one.text for one in each] for each in loaded.translate_best(TEXTS, 3, beam=3)]
    value = translate(server, q=TEXTS if is_list else TEXTS[0], alternatives=2)
    if is_list:
        assert value["translatedText"] == [each[0] for each in best]
        assert value["alternatives"] == [each[1:] for each in best]
    else:
        assert value["translatedText"] == best[0][0] and value["alternatives"] == best[0][1:]


def test_auto_is_the_only_source_language_of_a_target(server):
    value = translate(server, source="auto")
    assert value["detectedLanguage"] == {"language": "en", "confidence": 100.0}
    value = translate(server, q=TEXTS, source="auto")
    assert [one["language"] for one in value["detectedLanguage"]] == ["en"] * 3
    answer = server.post("/translate", {**BODY, "source": "auto", "target": "en"})
    assert answer.status_code == 400
    assert "source is auto, but texts in de and fr are translated" in answer.json()["error"]


def test_a_model_may_be_named_instead_of_languages(server):
    """Also one whose languages are not known."""
    for name in ("unknown", "fr-en"):
        answer = server.post("/translate", {"q": TEXTS[0], "model": name, "alternatives": 1})
        [best] = server.service.models.get(name).loaded.translate_best(TEXTS[:1], 2, beam=2)
        assert answer.json()["translatedText"] == best[0].text
        assert answer.json()["alternatives"] == [best[1].text]
        detected = answer.json().get("detectedLanguage", {}).get("language")
        assert detected == (None if name == "unknown" else "fr")  # never "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "en-de", "target": "fr"}, "translates en -> de, not en -> fr"),
        ({"model": "en-de", "source": "fr"}, "translates en -> de, not fr -> de"),
        ({"model": "decoder"}, "this route needs a model of kind encoder-decoder"),
        ({"target": ""}, "target is missing"),
    ],
)
def test_a_named_model_that_does_not_fit_is_refused(server, change, message):
    answer = server.post("/translate", {**BODY, **change})
    assert answer.status_code == 400 and message in answer.json()["error"]


def test_forms_are_read_like_json(server):
    whole = translate(server, q=TEXTS[:2], alternatives=1)
    fields = {"source": "en", "target": "de", "alternatives": "1", "q": TEXTS[:2]}
    answer = server.client.post("/translate", data=fields)
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json() == whole
    parts = [("source", "en"), ("target", "de"), ("alternatives", "1")]
    parts += [("q", text) for text in TEXTS[:2]]
    answer = server.client.post(
        "/translate", files=[(name, (None, value.encode())) for name, value in parts]
    )
    assert answer.json() == whole


def test_text_of_a_form_is_utf8(server):
    expected_text = translate(server, q="我吃了苹果\n\nmat")
    fields = {"q": "我吃了苹果\n\nmat", "source": "en", "target": "de"}
    assert server.client.post("/translate", data=fields).json() == expected_text
    files = {name: (None, value.encode()) for name, value in fields.items()}
    assert server.client.post("/translate", files=files).json() == expected_text


def test_languages_have_names_and_targets(server):
    value = server.get("/languages").json()
    for one in value:
        ServedLanguage.model_validate(one)
    assert value == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "fr", "name": "French", "targets": ["en"]},
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"target": "fr"},
            "no model translates en -> fr. Served are en -> de, de -> en, fr -> en.",
        ),
        ({"target": "fr"}, "start the server with --languages unknown=en:de"),
        ({"format": "html"}, "format is 'html': this server translates plain text"),
        ({"q": "the cat " * 60}, "tokens, and the model reads 40"),
        ({"q": ["mat\n" * 3000]}, "q has 3000 lines: at most 2048"),
        ({"beam": 2, "alternatives": 2}, "beam is 2 and alternatives 2"),
        ({"beam": 0}, "beam"),
        ({"alternatives": "many"}, "alternatives"),
        ({"q": None}, "q"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, message):
    answer = server.post("/translate", {**BODY, **change})
    assert answer.status_code == 400 and list(answer.json()) == ["error"]
    assert message in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_a_body_that_cannot_be_read_is_an_error(server, body, kind):
    answer = server.client.post("/translate", content=body, headers={"content-type": kind})
    assert answer.status_code == 400 and isinstance(answer.json()["error"], str)


def test_the_key_is_in_a_header_or_a_field():
    models = {"en-de": translator("en", "de")}
    with running(make_service(models, keys={"ann": "key-ann"})) as server:
        records: list[Any] = []
        server.service.sinks.append(records.append)
        for path in ("/translate", "/languages"):
            answer = server.post(path, BODY) if path == "/translate" else server.get(path)
            assert answer.status_code == 403 and "the field api_key" in answer.json()["error"]
        answer = server.post("/translate", {**BODY, "api_key": "wrong"})
        assert answer.status_code == 403 and "not valid" in answer.json()["error"]
        assert server.post("/translate", {**BODY, "api_key": "key-ann"}).status_code == 200
        assert records[-1].key == "ann" and records[-1].model == "en-de"
        assert server.client.post("/translate", data={**BODY, "api_key": "key-ann"}).is_success
        assert server.post("/translate", BODY, headers={"x-api-key": "key-ann"}).is_success
        assert server.get("/languages", params={"api_key": "key-ann"}).is_success
        form = {"content": "api_key=key-ann"}
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert server.client.request("GET", "/languages", headers=kind, **form).is_success


def test_models_without_languages_say_what_to_set():
    with running(make_service({"demo": tiny()})) as server:
        answer = server.post("/translate", BODY)
        assert answer.status_code == 400
        assert "The languages of demo are not known" in answer.json()["error"]
        assert server.get("/languages").json() == []
        server.service.models.get("demo").languages = ("en", "de")
        assert server.post("/translate", BODY).status_code == 200


def test_languages_are_settings_too(tmp_path):
    paths = {"demo": str(tiny_folder(tmp_path / "demo"))}
    config = ServeConfig(languages={"demo": "en:de"}, cache=0.05)
    service = build_service(config, paths, ApiKeys({}))
    service.models.load_all()
    with running(service) as server:
        assert translate(server) == {"translatedText": expected(server, TEXTS[:1], "demo")[0]}
        assert [one["code"] for one in server.get("/languages").json()] == ["de", "en"]


def test_languages_of_other_models_are_refused(tmp_path):
    paths = {"chat": str(tiny_folder(tmp_path / "chat", "decoder"))}
    with pytest.raises(UsageError, match="'demo' is not a served model. Served are chat"):
        build_service(ServeConfig(languages={"demo": "en:de"}), paths, ApiKeys({}))
    config = ServeConfig(languages={"chat": "en:de"}, cache=0.05)
    with pytest.raises(UsageError, match="the model is of kind decoder"):
        build_service(config, paths, ApiKeys({})).models.load_all()


def test_without_a_translation_model():
    with running(make_service()) as server:
        answer = server.post("/translate", BODY)
        assert answer.status_code == 400
        assert "Start the server with a translation model" in answer.json()["error"]


def test_attention_of_a_translation_by_its_request_id(server):
    answer = server.post("/translate", {**BODY, "q": TEXTS, "alternatives": 1})
    name = answer.headers["x-request-id"]
    value = server.post("/v1/attention", {"id": name, "index": 2, "position": 1}).json()
    tokenizer = server.service.models.get("en-de").tokenizer
    assert [one["id"] for one in value["source_tokens"]] == tokenizer.encode(TEXTS[1])
    assert len(value["heads"][0]["source_weights"]) == len(value["source_tokens"])
    server.wait_idle()


def test_a_timeout_cancels_the_request(server):
    headers = {"x-request-timeout": "0.0001"}
    answer = server.post("/translate", {**BODY, "q": TEXTS * 100}, headers=headers)
    assert answer.status_code == 504 and "0.0001 s" in answer.json()["error"]
    server.wait_idle()


def test_the_body_and_errors_are_declared(server):
    route = server.get("/openapi.json").json()["paths"]["/translate"]["post"]
    assert set(route["requestBody"]["content"]) == {
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    }
    assert {"200", "400", "403", "429", "503"} <= set(route["responses"])
    assert "422" not in route["responses"]
