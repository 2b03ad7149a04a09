"""In words: how much KV memory the traffic needs."""

from __future__ import annotations

from pointsman.app.advice import figures
from pointsman.app.advice.choice import mean_of
from pointsman.app.advice.findings import Findings
from pointsman.app.advice.traffic import NO_REUSE, WORKING_SET
from pointsman.app.advice.worth import recommended


def memory(findings: Findings) -> list[str]:
    """For running requests, and for what later ones find again."""
    return [*_running(findings), *_reuse(findings)]


def _running(findings: Findings) -> list[str]:
    runs = findings.policies.get(recommended(findings))
    if not runs:
        return []
    traffic = findings.traffic
    decoding_s = (mean_of(runs, "e2e_mean_ms") - mean_of(runs, "ttft_mean_ms")) / 1_000
    held = mean_of(runs, "requests_s") * decoding_s * (traffic.prompt_tokens_mean + traffic.output_tokens_mean / 2)
    room = f"{figures.tokens(findings.together.kv_tokens)} ({figures.memory(findings.together.kv_bytes)})"
    if held == held:
        said = [
            f"Answers in progress hold about {figures.tokens(held)} on average, what they share counted for each; the "
            f"workers have room for {room}."
        ]
    else:
        said = [f"The workers have room for {room}."]
    preempted = mean_of(runs, "preemptions")
    if preempted >= 1:
        said.append(
            f"That is too little at peaks: {preempted:,.0f} times a running request lost its KV and began again."
        )
    return said


def _reuse(findings: Findings) -> list[str]:
    caches = findings.traffic.caches
    if caches is None:
        return ["What prompts have in common, and so what a cache would need, the trace does not say."]
    if caches.share < NO_REUSE:
        return ["Next to nothing of a prompt comes again, so no memory is needed to keep it."]
    part = figures.percent(WORKING_SET)
    said = [
        f"{figures.percent(caches.share)} of all prompt tokens were in an earlier prompt. To find {part} "
        f"of those takes {figures.tokens(caches.working_set_tokens)} ({figures.memory(caches.working_set_bytes)}) "
        "of cache in all."
    ]
    lacking = caches.working_set_tokens - findings.together.kv_tokens
    if lacking > 0:
        host = caches.working_set_bytes * lacking / caches.working_set_tokens / findings.together.workers
        said.append(
            f"The workers' own finds at most {figures.percent(caches.share_of_fleet)}, however requests are routed; a "
            f"second tier of about {figures.memory(host)} of host memory a worker would hold the rest (not simulated)."
        )
    else:
        said.append("The workers' own is enough for that, as long as each prompt goes where its beginning is.")
    found = [f"{name} {figures.measured(runs, 'hit_share')}" for name, runs in findings.policies.items()]
    if found:
        where = "" if findings.excerpt.whole else ", with caches cold at first"
        said.append(f"Found in the simulation{where}: {', '.join(found)}.")
    return said
