"""A script of the package as a Lua function that a batch calls for each of its jobs.

A script of BullMQ is made for one job, and defines its helpers at its top level: 41 of them in `moveToFinished`. In a
batch two things would be done for each job though once is enough:

- The helpers would be made anew, which costs Redis as much as several commands. Those that stand alone move in front
  of the body: they name their parameters, what they define themselves, each other and `redis.call`. One that names a
  local of the script before it (its keys, its options) stays where it is.
- Some of them ask or do the same each time. Those get the `redis.call` of `common.lua` that does it once.

No line of a function is changed. A script laid out in another way keeps its helpers: slower, and as right.
"""

from __future__ import annotations

import re
from typing import Final

ONCE: Final = frozenset(
    {"getQueueMetadata", "isQueuePausedOrMaxed", "getOrSetMaxEvents", "trimEvents", "addBaseMarkerIfNeeded",
     "promoteDelayedJobs"}
)  # fmt: skip
"""Helpers whose `redis.call` is `once` of `common.lua`."""

_CALL: Final = "rcall"
_CALL_LINE: Final = "local rcall = redis.call"
_ONCE_LINE: Final = "local rcall = once"
_HEAD: Final = re.compile(r"local (?:function (\w+) ?|(\w+) = function ?)\(")
_PARAMETERS: Final = re.compile(r"\(([^)]*)\)")
_END: Final = "end"
_LOCALS: Final = re.compile(r"^local ([\w, ]+?) *(?:=|$)", re.MULTILINE)
_HEAD_COMMENT: Final = re.compile(r"^--\[\[.*?\]\]", re.DOTALL | re.MULTILINE)
_NO_CODE: Final = re.compile(r"--\[\[.*?\]\]|--[^\n]*|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
_NAME: Final = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_OF_EACH_CALL: Final = frozenset({"KEYS", "ARGV"})


def as_function(name: str, text: str) -> str:
    """Lua that defines `name(KEYS, ARGV)`. One that is not called costs nothing of what stands in it."""
    helpers, body = _parted(text)
    return f"""local made_{name}
local function {name}(KEYS, ARGV)
if not made_{name} then
{_CALL_LINE}
{helpers}
made_{name} = function(KEYS, ARGV)
{body}
end
end
return made_{name}(KEYS, ARGV)
end
"""


def _parted(text: str) -> tuple[str, str]:
    """The helpers that stand alone, and all else."""
    own = set(_OF_EACH_CALL)
    helpers: list[str] = []
    rest: list[str] = []
    for block in _blocks(_HEAD_COMMENT.sub("", text)):
        head = _HEAD.match(block)
        if head is None:
            own |= _locals(block) - {_CALL}
            rest.append(block)
        elif _used(block) & own:
            own.add(head[1] or head[2])
            rest.append(block)
        else:
            helpers.append(_asked_once(block, head[1]) if head[1] in ONCE else block)
    return "\n".join(helpers), "\n".join(rest)


def _blocks(text: str) -> list[str]:
    """The functions of the top level, each whole; and its other lines."""
    blocks: list[str] = []
    function: list[str] = []
    for line in text.splitlines():
        if function or _HEAD.match(line):
            function.append(line)
            if line.rstrip() == _END:
                blocks.append("\n".join(function))
                function = []
        elif line != _CALL_LINE:
            blocks.append(line)
    return [*blocks, *function]


def _asked_once(block: str, name: str) -> str:
    return f"local {name}\ndo\n{_ONCE_LINE}\n{block.removeprefix('local ')}\nend"


def _locals(line: str) -> set[str]:
    return {name.strip() for found in _LOCALS.findall(line) for name in found.split(",")}


def _used(function: str) -> set[str]:
    """Names that may be other than its own parameters: of a local inside one is not sure."""
    parameters = _PARAMETERS.search(function)
    own = set() if parameters is None else set(_NAME.findall(parameters[1]))
    return set(_NAME.findall(_NO_CODE.sub(" ", function))) - own
