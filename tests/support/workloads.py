"""Small traces with prefixes in common, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from pointsman.core.workload.prompt_tree import PromptNode, PromptTree
from pointsman.core.workload.trace import Trace, TraceRequest


@st.composite
def traces(draw: st.DrawFn, *, answers: bool = True, most: int = 25) -> Trace:
    """Sessions that share beginnings, grow, wait for one another, and come at equal or different times."""
    block_tokens = draw(st.sampled_from([4, 8]))
    tree = PromptTree(block_tokens)
    nodes: list[PromptNode] = [tree.root]
    last_of: dict[str, int] = {}
    requests: list[TraceRequest] = []
    at_ms = 0.0
    for number in range(draw(st.integers(1, most))):
        at_ms += draw(st.sampled_from([0.0, 5.0, 250.0]))
        prompt = draw(st.sampled_from(nodes)).then(draw(st.integers(0, 3)), draw(st.integers(1, 30)))
        answer = prompt.then(("answer", number), draw(st.integers(1, 20)))
        session = draw(st.none() | st.sampled_from(["s", "t", "u"]))
        after = last_of.get(session or "") if draw(st.booleans()) else None
        request = prompt.request(
            at_ms,
            answer.tokens - prompt.tokens,
            answer=answer if answers and draw(st.booleans()) else None,
            session=session,
            after=after,
            gap_ms=0.0 if after is None else draw(st.sampled_from([0.0, 40.0])),
        )
        requests.append(request)
        nodes += [prompt, answer] if request.answer_block_ids else [prompt]
        if session is not None:
            last_of[session] = number
    return Trace("made", tuple(requests), block_tokens)
