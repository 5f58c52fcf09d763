"""Sandboxed Jinja: the templates of the task YAMLs, and a model's own chat template around their texts.

In a task's templates unknown names are errors, and text stays as written. Filters besides Jinja's own: `upper_first`
(first letter to upper case, the rest unchanged) and `lower_first_word` (first word to lower case unless it is "I").

A chat template is filled once per number of turns, with a mark in place of each text, and cut at the marks. So its
frame, what it writes around the texts, depends on none of them, and an answer has the same tokens before it in
training, in scoring and in generation: the template's generation prompt and, of a model that thinks, an empty thought.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zo_sweeps.core.errors import UserError

LONGEST = 1 << 20  # characters of a filled template: a row keeps `train.max_length` tokens of it


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first_word(text: str) -> str:
    first, space, rest = text.partition(" ")
    return text if first == "I" else first.lower() + space + rest


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which bounds `range` alone, with bounds on what an operator or a call may make in one go."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sized, times = (right, left) if isinstance(left, int) and operator == "*" else (left, right)
        size = sized.bit_length() if isinstance(sized, int) else len(sized) if isinstance(sized, Sequence) else 0
        if isinstance(times, int) and size * (times if operator == "**" or not isinstance(sized, int) else 1) > LONGEST:
            raise SecurityError(f"{operator} makes more than {LONGEST:,} characters")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, int) and one > LONGEST for one in (*args, *kwargs.values())):  # as of text.ljust(n)
            raise SecurityError(f"a call with a number above {LONGEST:,}")
        return super().call(context, obj, *args, **kwargs)


# Task files may come from anyone, hence the sandbox. Jinja drops a final newline unless told otherwise, and most
# prompts end in one.
_ENV = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
_ENV.filters.update(upper_first=_upper_first, lower_first_word=_lower_first_word)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Template:
    return _ENV.from_string(source)


_NEVER_LONGER = {"trim", "lower", "upper", "capitalize", "title", "first", "last", "upper_first", "lower_first_word"}
_NEVER_LONGER |= {"strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition", "split"}
_WRITES_ONCE: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Concat, nodes.CondExpr),
    *(nodes.If, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Neg, nodes.Dict, nodes.Pair, nodes.List),
    *(nodes.Compare, nodes.Operand, nodes.Not),
)


def uses(source: str) -> float:
    """Return how often a template may write a field; infinity if it has anything that may lengthen or repeat one."""
    counted = 0
    left: list[nodes.Node] = [_ENV.parse(source)]
    while left:
        node = left.pop()
        if not (isinstance(node, _WRITES_ONCE) or _called(node) in _NEVER_LONGER):
            return math.inf
        counted += isinstance(node, nodes.Name)
        left += node.iter_child_nodes()
    return counted


def _called(node: nodes.Node) -> str:
    """Return the name of the filter or method that a node calls; "" if it calls none."""
    if isinstance(node, nodes.Filter):
        return node.name
    return node.node.attr if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) else ""


def fill(source: str, row: Mapping[str, Any]) -> str:
    """Fill the template `source` with the fields of `row`.

    Raises jinja2.TemplateError if a field is missing, ValueError if the text is longer than LONGEST, and whatever else
    an expression of the template raises.
    """
    parts, room = list[str](), LONGEST
    for part in _compiled(source).generate(row):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise ValueError(f"it makes more than {LONGEST:,} characters")
    return "".join(parts)


def names_in(source: str) -> set[str]:
    """Return the fields that the template `source` uses.

    Raises ValueError if it is not a template, or reaches for what the sandbox refuses in every row (`_` attributes).
    """
    try:
        _compiled(source)  # only the compiler notices unknown filters
        for node in _ENV.parse(source).find_all(nodes.Getattr):
            if not _ENV.is_safe_attribute(None, node.attr, None):
                raise ValueError(f"the attribute {node.attr!r} is not accessible")
        return meta.find_undeclared_variables(_ENV.parse(source)) - set(_ENV.globals)
    except TemplateSyntaxError as error:
        raise ValueError(f"{error.message} (line {error.lineno} of the template)") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


MARKS = 0xF0000  # the code point, of private use, that stands for the first text; the next one for the second
DATE = datetime(2024, 7, 26)  # "today" of templates that write it (Llama 3.1's default): a trial's texts stay the same


class Solved(NamedTuple):
    """A solved example, as text: its prompt and the right answer."""

    prompt: str
    answer: str


class _Generation(Extension):
    """The tag with which templates tell trainers what an assistant wrote; its body is written as it is."""

    tags: set[str] = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


# As of transformers, which trims blocks in this way and gives templates these names.
_CHATS = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
_CHATS.globals.update(raise_exception=_refuse, strftime_now=DATE.strftime)


class Chat:
    """A chat template around texts, each stripped. Thinking is off, in templates that can switch it.

    Attributes:
        tokens: those of the frame around a prompt without demonstrations.
        end, stop: what ends an answer, as text up to its token, and that token's id: the added token that the template
            writes after an assistant's turn, or with which the next turn begins; else the tokenizer's end of text.

    Args:
        tokenizer: one of transformers, or a `TokenizerFile`.
        system: the text of the system turn; "" for none, where some templates write one of their own.

    Raises UserError for a tokenizer without a chat template, a template that cannot be filled or does not write every
    text once, and one that takes no system text or leaves it out.
    """

    def __init__(self, tokenizer: Any, system: str) -> None:
        source = tokenizer.chat_template
        source = source.get("default") if isinstance(source, dict) else source  # of several, as transformers chooses
        if not source:
            what = "prompt=chat needs a chat template, and the model's tokenizer has none"
            raise UserError(what, where="model", fix="use an instruction-tuned model, or another prompt")
        self._source, self._system = source, system.strip()
        self._special: dict[str, str] = tokenizer.special_tokens_map
        self._frames: dict[int, list[str]] = {}
        before, between = self.around(())
        parts = (tokenizer(part, add_special_tokens=False, verbose=False) for part in (before, between.rstrip(" ")))
        self.tokens = sum(len(part["input_ids"]) for part in parts)
        self.end, self.stop = self._ended(tokenizer)

    def around(self, solved: Sequence[Solved]) -> tuple[str, str]:
        """Return (the text before a prompt, demonstrations included; the text between it and its answer)."""
        *before, between, _ = self._frame(len(solved))
        shown = [text.strip() for one in solved for text in one]
        return "".join(a + b for a, b in zip(before, (*shown, ""), strict=True)), between

    def _frame(self, solved: int) -> list[str]:
        """Return what the template writes before, between and after the texts of `solved` + 1 exchanges."""
        if solved not in self._frames:
            marks = [chr(MARKS + i) for i in range(2 * solved + 2)]
            turns = [{"role": ("user", "assistant")[i % 2], "content": mark} for i, mark in enumerate(marks)]
            text = self._filled([*([{"role": "system", "content": self._system}] if self._system else []), *turns])
            pattern = f"[{marks[0]}-{marks[-1]}]"
            if re.findall(pattern, text) != marks:
                raise UserError("the chat template does not write every text of a conversation once", where="model")
            if self._system not in text:
                raise UserError("the model's chat template leaves the system text out", where="prompt.system")
            self._frames[solved] = re.split(pattern, text)
        return self._frames[solved]

    def _filled(self, messages: list[dict[str, str]]) -> str:
        given = {"tools": None, "documents": None, "add_generation_prompt": False}
        off = {"enable_thinking": False, "thinking": False}  # of Qwen3 and SmolLM3; of Granite and DeepSeek
        try:
            return _CHATS.from_string(self._source).render({**self._special, **given, **off, "messages": messages})
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            part, where = ("the system text", "prompt.system") if self._system else ("a conversation", "model")
            raise UserError(f"the model's chat template does not take {part} ({error})", where=where) from error

    def _ended(self, tokenizer: Any) -> tuple[str, int]:
        added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
        for after in (self._frame(0)[-1], self._frame(1)[2]):  # GLM-4.5 ends a turn with the next one's <|user|>
            if marks := [mark for mark in added if mark and after.lstrip().startswith(mark)]:
                mark = max(marks, key=len)
                return after[: after.index(mark) + len(mark)], added[mark]
        end = self._special.get("eos_token", "")
        if end not in added:
            raise UserError("neither the chat template nor the tokenizer has a token that ends a turn", where="model")
        return end, added[end]


@lru_cache(maxsize=8)
def chat_of(tokenizer: Any, system: str) -> Chat:
    """Return the chat template of a tokenizer, kept for its next rows. Raises UserError as `Chat` does."""
    return Chat(tokenizer, system)
