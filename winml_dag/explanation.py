"""The text of a library's exception, as part of a sentence for users.

onnxruntime, onnx and PyTorch surround their messages with error codes, paths of their own source files, C++ signatures
and failed conditions. A user can use only the text and the node that it names; the worker writes the complete exception
to the stage's log.
"""

from __future__ import annotations

import re

# A longer text is cut at the end of a sentence, or else of a word.
_LONGEST = 400
_NO_TEXT = "no reason was given"

_SOURCE = r"\.(?:cc|cpp|cxx|cu|cuh|h|hpp|inl)"
# Full paths are followed by a signature (gcc, clang) or a qualified name (MSVC), bare file names by a function name.
_PLACE = re.compile(
    rf"(?P<posix>/[^\s:\"']+{_SOURCE}:\d+)(?P<colon>:)?\s*|(?P<other>(?:[A-Za-z]:\\[^\s:\"']*|\b)\w+{_SOURCE}:\d+)\s+"
)
_CONDITION = re.compile(r"(?P<condition>.{1,300}?) was false\.\s*")
_ASSERTION = re.compile(r"[\w:~]+: Assertion `.*?` failed:\s*")
_CLOSED = {")": "(", "]": "[", "}": "{", ">": "<"}
# Number of tokens of the longest return type before a function name.
_LONGEST_TYPE = 12

# The rest of the text is about the library's own code.
_STACK = re.compile(
    r"\s*(?:Exception raised from |Traceback \(most recent call last\)|Stacktrace:|frame #0:).*", re.DOTALL
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTEXT = re.compile(
    r"^(?P<text>.*?)\s*==> Context: Bad node spec for node\. Name: (?P<name>\S*) +OpType: (?P<op>\w+)", re.DOTALL
)
_NODES = (
    re.compile(
        r"Non-zero status code returned while running (?P<op>\S+) node\. Name:'(?P<name>.*?)' Status Message:\s*"
    ),
    re.compile(r"In Node, \(\"(?P<name>[^\"]*)\", (?P<op>[^,]+), \"[^\"]*\", -?\d+\) : .*? , Error "),
    re.compile(r"Node ?\((?P<name>[^()]*)\) Op \((?P<op>\w+)\)\s*"),
    re.compile(r"\(op_type:(?P<op>\w+)(?:, node name: (?P<name>[^()]*))?\):\s*"),
)
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|Load model (?:from )?\S.*? failed[:.]\s*"
    r"|Exception during initialization:\s*"
    r"|(?:This is an i|I)nvalid model\.\s+"
    r"|\[(?:Shape|Type)InferenceError\]\s*|Inference error\(s\):\s*"
    r"|\b(?:Type |Fatal )?Error: |\bFatal error: "
    r"|\[(?:Errno|WinError) \d+\]\s*"
    r"|\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning): "
    r"|\s*Please fix either the inputs/outputs or the model\."
    r"| INTERNAL ASSERT FAILED at \"[^\"]*\":\d+,(?: please report a bug to PyTorch\.)?"
    r"| at \"[^\"]*\.(?:cc|cpp|h)\":\d+"
)
_CLASS = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>")


def explanation(error: BaseException) -> str:
    """The message of *error*, on one line, without a full stop.

    It never contains an exception class, an error code, a path in a library's source, or a truncated word.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename is not None else error.strerror
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"{error.args[0]!r} is missing"
    if isinstance(error, SystemExit):
        return "it calls sys.exit"
    if isinstance(error, MemoryError) and not str(error):
        return "there is not enough memory"
    return cleaned(str(error)) or _NO_TEXT


def cleaned(text: str) -> str:
    """:func:`explanation` for the text of an exception; empty if nothing of it remains."""
    text = _STACK.sub("", _COLOURS.sub("", text)).strip()
    if found := _CONTEXT.match(text):
        text = f"{_node(found)}{found['text']}"
    # Text after an empty line explains the library, not what happened.
    text = " ".join(re.split(r"\n\s*\n", text)[0].split())
    text = _NOISE.sub("", _without_places(text))
    for pattern in _NODES:
        text = pattern.sub(_node, text)
    return _cut(_CLASS.sub(r"\1", text).strip(" .:;,"))


def _node(found: re.Match[str]) -> str:
    name, op = found["name"], found["op"]
    return f"{op} node {name!r}: " if name else f"{op} node without a name: "


def _without_places(text: str) -> str:
    """*text* without source locations, and without the function and condition that follow them."""
    kept = ""
    while found := _PLACE.search(text):
        kept = f"{kept}{text[: found.start()].rstrip()} "
        text = text[found.end() :]
        if found["colon"]:
            text = _ASSERTION.sub("", text, count=1)
        elif found["posix"]:
            text = _after_signature(text)
        else:
            text = text[_token_end(text) :].lstrip()
        if (condition := _CONDITION.match(text)) is not None:
            text = text[condition.end() :] or f"{condition['condition']} does not hold"
    return f"{kept}{text}".strip()


def _after_signature(text: str) -> str:
    """*text* after the signature at its start; all of it if it does not start with one."""
    place = 0
    for _ in range(_LONGEST_TYPE):
        end = _token_end(text, place)
        token = text[place:end]
        if token.endswith(")") or "<lambda" in token:
            rest = re.sub(r"^\s*(?:const|noexcept|&)\b\s*", "", text[end:]).lstrip()
            return rest[_token_end(rest) :].lstrip() if rest.startswith("[with ") else rest
        place = end + 1
        if place >= len(text):
            break
    return text


def _token_end(text: str, start: int = 0) -> int:
    """The end of the C++ token at *start*: a space outside of brackets, since signatures have many inside."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in _CLOSED.values():
            depth += 1
        elif text[place] in _CLOSED and depth:
            depth -= 1
        elif text[place] == " " and not depth:
            return place
    return len(text)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    sentence = text.rfind(". ", _LONGEST // 2, _LONGEST)
    return text[:sentence] if sentence > 0 else f"{text[:_LONGEST].rpartition(' ')[0] or text[:_LONGEST]} ..."
