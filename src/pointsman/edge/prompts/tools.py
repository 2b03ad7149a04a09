"""Tools of a request as an engine hands them to its chat template, which often prints them as JSON: order matters."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason

Tool = dict[str, object]
_FUNCTION_MEMBERS = ("name", "description", "parameters", "strict", "defer_loading")
_DROPPED_IF_NONE = ("strict", "defer_loading")


def read_tools(tools: Sequence[object] | None, tool_choice: object, dialect: Dialect) -> list[Tool] | None:
    """None: the template gets no tools. Raises NotTokenizable for what engines refuse."""
    if tools is None:
        return None
    if dialect is Dialect.VLLM:
        if not tools:
            raise _unusual("tools: an empty array, which vLLM refuses")
        return [_vllm_tool(tool) for tool in tools]
    return _sglang_tools(tools, tool_choice)


def flattened(tools: Sequence[Tool]) -> list[Tool]:
    """Only the functions: SGLang tries again with these when a template fails."""
    functions = [tool.get("function") for tool in tools]
    return [function for function in functions if isinstance(function, dict)]


def _vllm_tool(tool: object) -> Tool:
    outer, function = _members(tool)
    deferred = outer.get("defer_loading")
    if deferred is not None and function.get("defer_loading") is None:
        function = {**function, "defer_loading": deferred}
    read = {name: function.get(name) for name in _FUNCTION_MEMBERS}
    result: Tool = {"type": "function", "function": _without_dropped(read)}
    return result if deferred is None else {**result, "defer_loading": deferred}


def _sglang_tools(tools: Sequence[object], tool_choice: object) -> list[Tool] | None:
    if not tools or tool_choice == "none":
        return None
    read = [_sglang_tool(tool) for tool in tools]
    if not isinstance(tool_choice, dict):
        return read
    function = tool_choice.get("function")
    chosen = function.get("name") if isinstance(function, dict) else None
    named = [tool for tool in read if _function_name(tool) == chosen]
    return named or None


def _function_name(tool: Tool) -> object:
    function = tool["function"]
    return function.get("name") if isinstance(function, dict) else None


def _sglang_tool(tool: object) -> Tool:
    outer, function = _members(tool)
    deferred = outer.get("defer_loading")
    if deferred is not None and function.get("defer_loading") is None:
        function = {**function, "defer_loading": deferred}
    known = ("description", "name", "parameters", "strict", "defer_loading")
    ordered = [name for name in function if name in known] + [name for name in known if name not in function]
    read = _without_dropped({name: function.get(name) for name in ordered})
    return {"type": outer.get("type", "function"), "function": read, "defer_loading": deferred}


def _members(tool: object) -> tuple[Tool, Tool]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _unusual("tools: expected objects with a function that has a name")
    if tool.get("type", "function") != "function":
        raise _unusual("tools: a type other than function")
    return tool, function


def _without_dropped(function: Tool) -> Tool:
    return {name: value for name, value in function.items() if value is not None or name not in _DROPPED_IF_NONE}


def _unusual(message: str) -> NotTokenizable:
    return NotTokenizable(Reason.UNUSUAL_FIELD, message)
