"""/metrics, /v1/loads, /server_info and /docs tell what the server does, in others' names."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.server import RunningServer, make_service, running
from weft.serve.api_errors import ApiError
from weft.serve.config import ServeConfig
from weft.serve.context import RequestRecord
from weft.serve.operation_results import ServerInfo
from weft.serve.request_log import (
    LOGGERS,
    JsonFormatter,
    configure_logging,
    log_request,
    pairs,
    record_fields,
)
from weft.serve.server_metrics import one_two_five

BODY = {"model": "decoder", "prompt": "the cat sat on", "max_tokens": 9, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service(aliases={"other": "decoder"})) as one:
        yield one


def samples(server: RunningServer) -> dict[str, float]:
    """'name{label}' -> value; the label that is not model_name."""
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for one in family.samples:
            assert one.labels.pop("model_name") == "decoder"
            found[f"{one.name}{','.join(one.labels.values())}"] = one.value
    return found


def test_requests_are_counted_under_vllms_names(server):
    before = samples(server)
    assert server.post("/v1/completions", {**BODY, "n": 2}).status_code == 200
    assert server.post("/v1/completions", {**BODY, "model": "other"}).status_code == 200
    server.wait_idle()
    after = samples(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    prompt = len(server.service.models.get("decoder").loaded.prompt_ids(BODY["prompt"]))
    assert grown("vllm:prompt_tokens_total") == 2 * prompt
    assert grown("vllm:generation_tokens_total") == 27
    assert grown("vllm:request_success_totallength") == 2
    assert grown("vllm:prefix_cache_queries_total") == 2 * prompt
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert grown(f"vllm:{name}_seconds_count") == 2
    assert grown("vllm:inter_token_latency_seconds_count") == 3 * 8
    assert grown("vllm:request_params_n_bucket1.0") == 1
    assert grown("vllm:request_generation_tokens_sum") == 27
    times = ("queue_time", "prefill_time", "decode_time")
    total = sum(grown(f"vllm:request_{name}_seconds_sum") for name in times)
    assert 0 < total <= grown("vllm:e2e_request_latency_seconds_sum")
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0.0
    assert "vllm:num_preemptions_total" in after
    assert "vllm:num_requests_waiting_by_reasoncapacity" in after
    text = server.get("/metrics").text
    assert 'vllm:cache_config_info{block_size="4",' in text
    assert 'vllm:time_to_first_token_seconds_bucket{le="0.001",model_name="decoder"}' in text
    assert 'vllm:request_prompt_tokens_bucket{le="50.0",model_name="decoder"}' in text


def test_failed_requests_without_a_model_are_not_counted(server):
    before = samples(server)
    assert server.post("/v1/completions", {**BODY, "model": "none"}).status_code == 404
    assert samples(server) == before


def test_the_prefix_can_be_changed():
    with running(make_service(metrics_prefix="weft")) as server:
        assert "weft:num_requests_running" in server.get("/metrics").text
        assert "vllm:" not in server.get("/metrics").text


def test_buckets_of_sizes():
    assert one_two_five(60) == [1, 2, 5, 10, 20, 50]
    assert one_two_five(0) == [1]


def test_loads_and_server_info(server):
    value = server.get("/v1/loads").json()
    assert value["loads"][0]["model"] == "decoder" and value["aggregate"]["total_reqs"] == 0
    assert value["loads"][0]["max_total_num_tokens"] > 0
    info = server.get("/server_info").json()
    assert info["models"]["decoder"]["max_model_len"] == 40
    assert info["models"]["decoder"]["tool_format"] == "hermes"  # as --tool-format has it
    ServerInfo.model_validate(info)
    facts = info["models"]["decoder"]["architecture"]
    model = server.service.models.get("decoder").loaded.model
    assert facts["parameters"] == sum(one.numel() for one in model.parameters())
    assert (facts["layers"], facts["heads"], facts["kv_heads"], facts["width"]) == (2, 8, 8, 32)
    assert (facts["attention"], facts["position"]) == ("mha", "sinusoidal")
    assert (facts["tokenizer"], facts["dtype"]) == ("BPE", "float32")
    assert info["settings"]["max_queued"] == 1024 and info["has_api_keys"] is False


def test_server_info_has_no_keys():
    with running(make_service(keys={"alice": "very-secret"})) as server:
        headers = {"authorization": "Bearer very-secret"}
        answer = server.get("/server_info", headers=headers)
        assert answer.json()["has_api_keys"] and "very-secret" not in answer.text
        assert server.get("/server_info").status_code == 401


def test_docs_lists_the_routes_without_external_assets(server):
    answer = server.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "POST /v1/completions" in answer.text and "Continue a prompt" not in answer.text
    assert "temperature" in answer.text
    assert answer.text.count("<td>alternatives</td>") == 1  # of /translate, which reads forms too
    assert "<script" not in answer.text and "http://" not in answer.text
    assert "https://" not in answer.text.replace("https://example", "")


@pytest.fixture
def record() -> RequestRecord:
    record = RequestRecord("req_1", "/v1/completions", "alice", "m", 200, began_at=1.0)
    record.prompt_tokens, record.completion_tokens, record.seed = 7, 3, 5
    record.first_token_at, record.ended_at, record.finish_reason = 1.25, 2.0, "length"
    return record


def test_the_log_has_one_line_per_request_without_text(record, caplog):
    with caplog.at_level(logging.DEBUG, "weft.serve.request"):
        log_request(record)
        log_request(RequestRecord("x", "/health", status=200))
    assert [one.levelname for one in caplog.records] == ["INFO", "DEBUG"]
    assert caplog.messages[0] == (
        "id=req_1 key=alice model=m route=/v1/completions status=200 prompt_tokens=7 "
        "cached_tokens=0 new_tokens=3 ttft=0.25 total=1.0 finish=length seed=5"
    )
    record.failed(ApiError(500, 'not "good" = bad'))
    assert record_fields(record)["error"] == 'not "good" = bad'
    with caplog.at_level(logging.INFO, "weft.serve.request"):
        log_request(record)
    assert caplog.messages[-1].endswith(r'error="not \"good\" = bad"')
    record.failed(ApiError(503, "x" * 5000))
    assert len(record_fields(record)["error"]) < 1100
    line = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert line["level"] == "info" and line["prompt_tokens"] == 7 and line["time"].endswith("Z")


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (ApiError(400, "stop is SECRET", "stop"), "invalid_request_error param=stop"),
        (ApiError(400, "SECRET", "messages[3].SECRET"), "invalid_request_error param=messages[3]"),
        (ApiError(400, "'SECRET' is not a field", "SECRET"), "invalid_request_error"),
        (ApiError(400, "SECRET", "SECRET[1]"), "invalid_request_error"),
        (ApiError(404, "SECRET", "model", "gone"), "not_found_error code=gone param=model"),
        (ApiError(429, "SECRET"), "rate_limit_error"),
    ],
)
def test_the_log_does_not_quote_what_a_client_has_sent(record, error, fields):
    record.failed(error)
    line = pairs(record_fields(record))
    assert line.endswith(f"seed=5 error={fields}") and "SECRET" not in line


def test_logging_is_configured_by_the_settings(capsys):
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    try:
        configure_logging(ServeConfig(log_format="json", log_level="warning"))
        logging.getLogger("weft.any").info("hidden")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("weft.any").exception("shown")
        configure_logging(ServeConfig())
        logging.getLogger("weft.any").info("plain")
        first, second = capsys.readouterr().err.splitlines()
        event = json.loads(first)
        assert event["message"] == "shown" and "ValueError: broken" in event["traceback"]
        assert second.endswith(" INFO plain")
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
