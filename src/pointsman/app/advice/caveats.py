"""What an answer assumes, and what it does not know."""

from __future__ import annotations

from dataclasses import replace

from pointsman.app.advice import figures
from pointsman.app.advice.findings import AWARE, DEFAULT, Findings
from pointsman.app.advice.idle import quantile
from pointsman.app.advice.laboratory import NEED_EVENTS, NOISE
from pointsman.app.advice.settling import settling_ms
from pointsman.app.experiments.comparison import SIGNIFICANCE
from pointsman.app.experiments.oversize import cut_note, oversize_note
from pointsman.app.experiments.saturation import FEWEST_REQUESTS
from pointsman.app.experiments.verdict import listed
from pointsman.core.timing.profiles import Profile

_LESS_REUSE = 0.8


def assumed(findings: Findings) -> list[str]:
    """What was taken for granted."""
    question, excerpt = findings.question, findings.excerpt
    slo = f"The SLO: {question.slo} for {figures.percent(question.target)} of the requests"
    said = [f"{slo}, since none was given (--slo)." if question.slo_assumed else f"{slo}."]
    traffic = findings.traffic
    said.append(
        f"Traffic as in {question.trace.name}: {_counted(traffic.requests)}, {traffic.requests_s:.3g} a second, "
        f"{traffic.prompt_tokens_mean:,.0f} prompt and {traffic.output_tokens_mean:,.0f} output tokens on average."
    )
    if not excerpt.whole:
        minutes = excerpt.trace.duration_ms / 60_000
        said.append(
            f"Simulated was its busiest stretch: {len(excerpt.trace):,} requests from number {excerpt.first:,} on, "
            f"{minutes:.3g} minutes with ×{excerpt.load:.3g} the mean load. --thorough takes all."
        )
    blocks, own = question.setup.block_tokens, question.trace.block_tokens
    if blocks is not None and own and blocks != own:
        said.append(f"KV blocks of {blocks} tokens; the trace's have {own}.")
    said.append(
        f"{question.seeds} runs of each case: conversations come a little earlier or later, step times vary by "
        f"{figures.percent(NOISE)}. A difference is called one where chance makes it in less than "
        f"{figures.percent(SIGNIFICANCE)} of such experiments."
    )
    said.extend(_speed(profile) for profile in _profiles(findings))
    if len([name for name in AWARE if name in findings.policies]) > 1:
        said.append(
            f"{DEFAULT}, the default, is preferred to others that know what is cached: only one that is surely and "
            "noticeably better is advised instead."
        )
    if findings.traffic.caches is not None and (hear := [name for name in findings.policies if name in NEED_EVENTS]):
        said.append(f"For {listed(hear)} the engines tell which KV blocks they hold; the other policies do without.")
    if findings.split is not None:
        link = question.setup.link
        over = "the network that is usual for these GPUs" if link is None else f"{link.name}, {link.gb_per_s:g} GB/s"
        said.append(f"From prefill to decode KV moves over {over}.")
    said.extend(question.fleets.notes)
    return said


def unknown(findings: Findings) -> list[str]:
    """What may make reality differ."""
    question, traffic, caches = findings.question, findings.traffic, findings.traffic.caches
    said = []
    if findings.interrupted:
        said.append("It was interrupted: what is missing above was not simulated.")
    requests = question.trace.requests
    prompt_tokens = quantile([request.prompt_tokens for request in requests], 0.99)
    output_tokens = quantile([request.output_tokens for request in requests], 0.99)
    for profile in _profiles(findings):
        if profile.valid is None:
            said.append(
                f"{profile.name}: nobody knows for which traffic it holds; measure yours (pointsman calibrate)."
            )
        elif outside := profile.valid.outside(prompt_tokens, output_tokens):
            said.append(
                f"{profile.name} was not measured for this traffic, whose P99 are {listed(outside)}: beyond that range "
                "its times are a guess (pointsman calibrate measures yours)."
            )
    if caches is not None and caches.share_in_stretch < _LESS_REUSE * caches.share:
        said.append(
            f"Within the simulated stretch only {figures.percent(caches.share_in_stretch)} of prompt tokens come "
            f"again, in the whole trace {figures.percent(caches.share)}: caches gain more than shown here."
        )
    if traffic.models > 1:
        said.append(f"The trace asks for {traffic.models} models; all workers were taken to serve all of them.")
    if all(request.after is None for request in requests):
        said.append(
            "Which requests wait for an earlier answer the trace does not say: a slow fleet gets as many as a fast one."
        )
    if len(requests) < FEWEST_REQUESTS:
        said.append(
            f"The trace has {_counted(len(requests))}, too few for shares and P99s "
            "to mean much: record a thousand or more."
        )
    lasts_ms, needed_ms = findings.excerpt.trace.duration_ms, settling_ms(question)
    if lasts_ms < needed_ms:
        said.append(
            f"What was simulated lasts {lasts_ms / 1_000:,.3g} s, and a fleet takes about {needed_ms / 1_000:,.3g} s "
            "to fill up and to show whether it keeps up: traffic that goes on needs more workers than said here, and "
            "less of it fits."
        )
    setup = replace(question.setup, groups=findings.together.groups)
    notes = (oversize_note(findings.excerpt.trace, [setup]), cut_note(findings.excerpt.trace, [setup]))
    said.extend(f"{note[0].upper()}{note[1:]}." for note in notes if note is not None)
    if caches is not None and DEFAULT in findings.policies:
        said.append(
            f"How {DEFAULT} does where engines send no KV events: it then goes by what was sent to them (pointsman "
            f"simulate --policy {DEFAULT} --no-kv-events tells)."
        )
    said.append(
        "Not modelled: tokenizing and networks before the engines, several front ends, speculative decoding, engines "
        "that fail."
    )
    return said


def _counted(requests: int) -> str:
    return f"{requests:,} request{'' if requests == 1 else 's'}"


def _profiles(findings: Findings) -> list[Profile]:
    profiles = findings.question.profiles
    return list(dict.fromkeys((profiles.prefill, profiles.decode)))


def _speed(profile: Profile) -> str:
    error = "" if profile.mape is None else f", mean error {profile.mape:g} %"
    return f"Speed and KV memory of {profile.name}: {profile.source}{error}."
