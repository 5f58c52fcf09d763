"""Chat templates as models have them, written for these tests, and small tokenizers that go with them."""

from __future__ import annotations

from typing import Any, NamedTuple

CORPUS = [
    "great\nterrible\nIt was great It was terrible Yes or No? Yes No",
    "so No, Yes user assistant system model",
] * 20

# As of SmolLM2 and Qwen2.5, which write a system text of their own if there is none.
CHATML = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful film.<|im_end|>
{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %}"""

# As of Qwen3: an empty thought in the last answer, and in the generation prompt if thinking is off.
QWEN3 = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif loop.index0 > ns.last %}
        {{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message.content.split('</think>')[-1] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>assistant\n' + message.content.split('</think>')[-1] + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

# As of DeepSeek's R1 models: a generation prompt that opens a thought, which no answer has.
R1 = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}
{%- elif m.role == 'assistant' %}
{%- generation %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% endgeneration %}
{%- else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"""

# As of Llama 3: trimmed texts, and today's date.
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date_string + '\n\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

# As of Gemma 2: no system text, and the assistant is called model.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# As of Mistral: a space before an answer, and the system text in the last of the user's turns.
MISTRAL = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] + '\n\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- set last = (messages | selectattr('role', 'equalto', 'user') | list | length - 1) * 2 %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.index0 == last else '') + message['content'] + '[/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}"""

# As of Llama 2: no tokens of its own, and spaces around an answer.
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{%- set system, messages = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n', messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}{% for message in messages %}
{%- if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

# As of Phi-3: tokens that take the white space behind them, and the end of text behind the last turn.
PHI = """{% for message in messages %}
{{- '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""


class Chatting(NamedTuple):
    """A template, the tokens that it writes besides <s> and </s>, how its tokenizer works, and what ends its turns."""

    template: str
    tokens: tuple[str, ...]
    end: str
    pieces: bool = False  # SentencePiece's way with spaces, not bytes
    bos: bool = False  # whether the tokenizer puts <s> before every text
    system: bool = True  # whether it takes a system text


CHATS = {
    "chatml": Chatting(CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "qwen3": Chatting(QWEN3, ("<|im_start|>", "<|im_end|>", "<think>", "</think>"), "<|im_end|>"),
    "r1": Chatting(R1, ("<|User|>", "<|Assistant|>", "<think>", "</think>"), "</s>", bos=True),
    "llama3": Chatting(LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>", bos=True),
    "gemma": Chatting(GEMMA, ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", True, True, False),
    "llama2": Chatting(LLAMA2, (), "</s>", True, True),
    "mistral": Chatting(MISTRAL, ("[INST]", "[/INST]"), "</s>", True, True),
    "phi": Chatting(PHI, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), "<|end|>", True),
}


def tokenizer_of(name: str) -> Any:
    """A tokenizer with the chat template of this name."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    chat = CHATS[name]
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if chat.pieces:
        lines = pre_tokenizers.Split("\n", "isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(prepend_scheme="first")])
        core.decoder = decoders.Metaspace()
        alphabet = [chr(i) for i in range(32, 127)] + ["\n"]
    else:
        core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    core.add_special_tokens([AddedToken(token, rstrip=name == "phi", special=True) for token in chat.tokens])
    if chat.bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=chat.template
    )
