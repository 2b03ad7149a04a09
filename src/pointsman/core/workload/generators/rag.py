"""Retrieval: each prompt holds instructions, some documents, some of which are popular, and a question of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import Arrivals, arrival_times
from pointsman.core.workload.generators.distributions import Distribution, Fixed, Lognormal, whole
from pointsman.core.workload.generators.popularity import Popularity
from pointsman.core.workload.prompt_tree import PromptTree
from pointsman.core.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Rag:
    """Settings."""

    arrivals: Arrivals
    documents: int = 1000
    zipf: float = 1.0
    """Of documents."""
    documents_a_request: int = 3
    popular_first: bool = True
    """Documents stand in the order of their popularity, so that prompts have more in common; else as they were
    found, in random order."""
    system_tokens: Distribution = Fixed(500)
    document_tokens: Distribution = Lognormal(2000, 0.8, 50, 30_000)
    """Drawn once a document."""
    question_tokens: Distribution = Lognormal(80, 0.8, 5, 2000)
    output_tokens: Distribution = Lognormal(250, 0.8, 1, 4000)
    block_tokens: int = 16
    requests: int | None = None
    duration_s: float | None = None


def rag(settings: Rag, rng: np.random.Generator) -> Trace:
    """Make it. Raises TraceError when the settings can't be."""
    if not 0 <= settings.documents_a_request <= settings.documents:
        raise TraceError(
            f"{settings.documents_a_request} different ones of {settings.documents} documents can't be had"
        )
    tree = PromptTree(settings.block_tokens)
    system = tree.root.then("system", whole(settings.system_tokens, rng))
    lengths = [whole(settings.document_tokens, rng) for _ in range(settings.documents)]
    popularity = Popularity(settings.documents, settings.zipf)
    requests = []
    for number, at_ms in enumerate(arrival_times(settings.arrivals, rng, settings.requests, settings.duration_s)):
        chosen = popularity.draw_different(rng, settings.documents_a_request)
        node = system
        for document in sorted(chosen) if settings.popular_first else rng.permutation(chosen).tolist():
            node = node.then(document, lengths[document])
        question = node.then(("question", number), whole(settings.question_tokens, rng))
        requests.append(question.request(at_ms, whole(settings.output_tokens, rng)))
    return Trace("rag", tuple(requests), settings.block_tokens, "made: retrieval of documents")
