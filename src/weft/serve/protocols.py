"""The families of endpoints. A new protocol is one file with a router, and one entry here."""

from __future__ import annotations

from fastapi import APIRouter

from weft.serve import (
    anthropic_messages,
    attention,
    libretranslate,
    ollama,
    ollama_embeddings,
    ollama_models,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    openai_responses,
    operations,
    rerank,
    tokenization,
)

PROTOCOLS: dict[str, APIRouter] = {
    "anthropic messages": anthropic_messages.router,
    "attention": attention.router,
    "ollama": ollama.router,
    "ollama embeddings": ollama_embeddings.router,
    "ollama models": ollama_models.router,
    "openai chat": openai_chat.router,
    "openai completions": openai_completions.router,
    "openai embeddings": openai_embeddings.router,
    "openai models": openai_models.router,
    "openai responses": openai_responses.router,
    "rerank": rerank.router,
    "tokenization": tokenization.router,
    "libretranslate": libretranslate.router,
    "operations": operations.router,
}
