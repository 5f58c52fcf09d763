"""Rows, templates, YAML files and models that are wrong, as data: each with the line that a user must get.

The place of a line, "in FILE:ROW" or "in FILE", is added by the test.
"""

from __future__ import annotations

import gzip

SST2 = b'{"sentence": "fine", "label": 1}'
DEEP = b"[" * 100_000
SQUAD = b'{"title": "", "context": "c", "question": "q", "answers": %s}'
RECORD = b'{"passage": "p", "query": "@placeholder won", "entities": %s, "answers": %s}'

ROWS = [  # task, the file's third line, what is wrong with it
    ("sst2", b"{", "not a JSON line (Expecting property name"),
    ("sst2", b'{"sentence": "a", "label": 1', "not a JSON line (Expecting ',' delimiter"),
    ("sst2", b"{'sentence': 'a', 'label': 1}", "not a JSON line (Expecting property name enclosed in double quotes"),
    ("sst2", b'{"sentence": "a", "label": 1},', "not a JSON line (Extra data"),
    ("sst2", b'{"sentence": "a" "label": 1}', "not a JSON line (Expecting ',' delimiter"),
    ("sst2", b'{"sentence": "a", "label": None}', "not a JSON line (Expecting value"),
    ("sst2", b'{"sentence": "a\tb", "label": 1}', "not a JSON line (Invalid control character"),
    ("sst2", b'{"sentence": "a\\x", "label": 1}', "not a JSON line (Invalid \\escape"),
    ("sst2", b'{"sentence": "a\\u12", "label": 1}', "not a JSON line (Invalid \\uXXXX escape"),
    ("sst2", b"sentence,label", "not a JSON line (Expecting value"),
    ("sst2", b"\0\0\0\0", "not a JSON line ("),
    (
        "sst2",
        '{"sentence": "é", "label": 1}'.encode("latin-1"),
        "not a JSON line ('utf-8' codec can't decode byte 0xe9",
    ),
    ("sst2", gzip.compress(SST2, mtime=0), "not a JSON line ('utf-8' codec can't decode byte 0x8b"),
    ("sst2", DEEP, "not a JSON line (maximum recursion depth exceeded"),
    ("sst2", b'{"sentence": ' + DEEP + b"]" * 100_000 + b"}", "not a JSON line (maximum recursion depth exceeded"),
    ("sst2", b'{"a":' * 100_000, "not a JSON line (maximum recursion depth exceeded"),
    ("sst2", b'[{"sentence": "a", "label": 1}]', "a list where a JSON object was expected"),
    ("sst2", b'"a"', "a str where a JSON object was expected"),
    ("sst2", b"null", "a NoneType where a JSON object was expected"),
    ("sst2", b"3", "a int where a JSON object was expected"),
    ("sst2", b"{}", "missing field 'sentence'"),
    ("sst2", b'{"text": "a", "label": 1}', "missing field 'sentence'"),
    ("sst2", b'{"sentence": "a"}', "missing field 'label'"),
    ("sst2", b'{"Sentence": "a", "label": 1}', "missing field 'sentence'"),
    ("sst2", b'{"sentence": null, "label": 1}', "field 'sentence' is null"),
    ("sst2", b'{"sentence": "a", "label": null}', "field 'label' is null"),
    ("sst2", b'{"sentence": "a", "label": 2}', "label 2 is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": -1}', "label -1 is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": "1"}', "label '1' is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": 0.5}', "label 0.5 is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": NaN}', "field 'label' is NaN in"),
    ("sst2", b'{"sentence": "a", "label": [1]}', "label [1] is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": {}}', "label {} is not one of 0, 1"),
    ("sst2", b'{"sentence": "a", "label": "\\ud800"}', "label '\\ud800' is not one of 0, 1"),
    (
        "sst2",
        b'{"sentence": "a \xed\xa0\xbd\xed\xb8\x80 b", "label": 1}',
        "not a JSON line ('utf-8' codec can't decode",
    ),
    ("sst2", b'{"sentence": "a \\ud800 b", "label": 1}', "half of a surrogate pair in field 'sentence'"),
    ("sst2", b'{"sentence": "a \\uDE00\\ud83d b", "label": 1}', "half of a surrogate pair in field 'sentence'"),
    ("sst2", b'{"sentence": ["\\udfff"], "label": 1}', "half of a surrogate pair in field 'sentence'"),
    ("sst2", b'{"sentence": "%s", "label": 1}' % (b"word " * 400_000), "it makes more than 1,048,576 characters"),
    ("sst2", b'{"sentence": "%s", "label": 1}' % (b"x" * 2_000_000), "it makes more than 1,048,576 characters"),
    ("squad", SQUAD % b'{"text": []}', "'answers.text' is not a list of one or more answers"),
    ("squad", SQUAD % b'{"text": "a"}', "'answers.text' is not a list of one or more answers"),
    ("squad", SQUAD % b'{"txt": ["a"]}', "missing field 'answers.text'"),
    ("squad", SQUAD % b'"a"', "missing field 'answers.text'"),
    ("squad", SQUAD % b'{"text": ["\\ud83d"]}', "half of a surrogate pair in field 'answers'"),
    ("record", RECORD % (b'["Oslo"]', b'["Oslo"]'), "'entities' is not a list of two or more options"),
    ("record", RECORD % (b'"Oslo"', b'["Oslo"]'), "'entities' is not a list of two or more options"),
    ("record", RECORD % (b'["Oslo", "Rome"]', b"[]"), "'answers' is not a list of one or more answers"),
    ("record", RECORD % (b'["Oslo", "Rome"]', b'["Bonn"]'), "the answer 'Bonn' is not among 'entities'"),
]

LOOP = "{{% for i in range({0}) %}}{1}{{% endfor %}}"
TEMPLATES = [  # template of SST-2, what is wrong with it
    ("{{ sentence", "bad template: unexpected end of template"),
    ("{% if sentence %}", "bad template: Unexpected end of template"),
    ("{{ sentence | shout }}", "bad template: No filter named 'shout'"),
    ("{{ sentnce }}", "unknown field 'sentnce'"),
    ("{{ sentence.__class__ }}", "bad template: the attribute '__class__' is not accessible"),
    ("{{ sentence['__class__'] }}", "the template does not fit a row"),
    ("{{ " + "(" * 3000 + "sentence" + ")" * 3000 + " }}", "bad template: it is nested too deeply"),
    ("{{ sentence.text }}", "the template does not fit a row ('str object' has no attribute 'text')"),
    ("{{ sentence + 1 }}", "the template does not fit a row (can only concatenate str"),
    ("{{ 1 / 0 }}", "the template does not fit a row (division by zero)"),
    ("{{ [1][3] }}", "the template does not fit a row"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the template does not fit a row (maximum recursion depth"),
    (LOOP.format(1_000_000, "a"), "the template does not fit a row (Range too big"),
    (LOOP.format(99_999, "{{ sentence }}, at length"), "the template does not fit a row (it makes more than 1,048,576"),
    (LOOP.format(99_999, LOOP.format(99_999, "a")), "the template does not fit a row (it makes more than 1,048,576"),
    ("{{ sentence * 1000000000 }}", "the template does not fit a row (* makes more than 1,048,576 characters)"),
    ("{{ 1000000000 * sentence }}", "the template does not fit a row (* makes more than 1,048,576 characters)"),
    ("{{ 10 ** 100000000 }}", "the template does not fit a row (** makes more than 1,048,576 characters)"),
    ("{{ sentence.ljust(10000000000) }}", "the template does not fit a row (a call with a number above 1,048,576)"),
    ("{{ sentence.center(width=10000000000) }}", "the template does not fit a row"),
]

LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)
)
YAMLS = [  # a file of configuration, what is wrong with it
    (b"name: [unclosed\n", "not valid YAML: while parsing a flow sequence at line 1"),
    (b'name: "unclosed\n', "not valid YAML: while scanning a quoted scalar at line 1"),
    (b"name: a: b\n", "not valid YAML: mapping values are not allowed in this context at line 1, column 8"),
    (b"a: 1\n b: 2\n", "not valid YAML: "),
    (b"a: 1\n\tb: 2\n", "not valid YAML: "),
    (b"a: 1\na: 2\n", "not valid YAML: while constructing a mapping at line 1, column 1 found duplicate key a"),
    (b"a: *b\n", "not valid YAML: found undefined alias"),
    (b"a: 1\n<<: 3\n", "expected a mapping or list of mappings for merging"),
    (b"? [a]\n: 3\n", "not valid YAML: while constructing a mapping at line 1, column 1 found unhashable key"),
    (b"a: !!python/object/apply:os.system [ls]\n", "not valid YAML: could not determine a constructor for the tag"),
    (b"a: !thing 3\n", "not valid YAML: could not determine a constructor for the tag '!thing'"),
    (b"a: 1\n---\nb: 2\n", "not valid YAML: expected a single document in the stream"),
    (b"a: 1\0\n", "not valid YAML: unacceptable character #x0000"),
    (b"a: \x07\n", "not valid YAML: unacceptable character #x0007"),
    (b"%YAML 9.0\n---\na: 1\n", "not valid YAML: "),
    (b"- a\n- b\n", "a list where keys and values were expected"),
    (b"text\n", "a str where keys and values were expected"),
    ("title: é\n".encode("latin-1"), "not UTF-8 text (invalid continuation byte)"),
    ("title: a\n".encode("utf-16"), "not UTF-8 text (invalid start byte)"),
    (gzip.compress(b"a: 1\n", mtime=0), "not UTF-8 text (invalid start byte)"),
    (b"about: &a [*a]\n", "nested more than 100 deep"),
    (b"about: &a {b: *a}\n", "nested more than 100 deep"),
    (b"about: " + b"[" * 2000 + b"]" * 2000 + b"\n", "nested more than 100 deep"),
    (b"about: " + b"[" * 101 + b"]" * 101 + b"\n", "nested more than 100 deep"),
    (LAUGHS, "more than 262,144 entries, those that aliases (*name) repeat included"),
]

CONFIG, TOKENIZER, SETTINGS, WEIGHTS = "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"
LINK, FOLDER, GONE = "a link to itself", "a folder", "gone"
MODELS = [  # file of a model, what it is instead, what is wrong with it
    (CONFIG, GONE, "not a model: no config.json"),
    (CONFIG, FOLDER, "not a model: no config.json"),
    (CONFIG, LINK, "not a model: no config.json"),
    (CONFIG, b"", "config.json is not JSON (Expecting value"),
    (CONFIG, b"[" * 100_000, "config.json is not JSON (maximum recursion depth exceeded"),
    (CONFIG, "é".encode("latin-1"), "config.json is not JSON ('utf-8' codec"),
    (CONFIG, b"[]", "config.json is not a JSON object"),
    (CONFIG, b"{}", "the model's config names no model_type"),
    (TOKENIZER, GONE, "no tokenizer (tokenizer.json, tokenizer.model"),
    (TOKENIZER, LINK, "no tokenizer (tokenizer.json, tokenizer.model"),
    (TOKENIZER, b"", "tokenizer.json is not a JSON object"),
    (TOKENIZER, b"[" * 100_000, "tokenizer.json is not a JSON object"),
    (TOKENIZER, b"{}", "the tokenizer cannot be read ("),
    (SETTINGS, b"[" * 100_000, "tokenizer_config.json is not a JSON object"),
    (SETTINGS, b"nope", "tokenizer_config.json is not a JSON object"),
    (WEIGHTS, GONE, "no weights (model.safetensors)"),
    (WEIGHTS, LINK, "no weights (model.safetensors)"),
    (WEIGHTS, FOLDER, "no weights (model.safetensors)"),
    (WEIGHTS, b"", "model.safetensors is not a complete safetensors file"),
    (WEIGHTS, b"\2\0\0\0\0\0\0\0[[", "model.safetensors is not a safetensors file"),
]
