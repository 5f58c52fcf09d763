"""Tasks: prompt, verbalizer, kind, metrics and splits. One YAML per task; no torch here.

task = read(Task, task_cfg, "task")                    the task, typed, from its YAML
spec = TaskSpec.of(task, dialect)                      the task in one wording
status = check(spec, task, data_dir)                   whether its data is here (fast, for the planner)
splits = load_splits(spec, task, data_dir, split)      rows
example = encode(spec, row, tokenizer, max_length)     token ids
values = evaluate(spec, examples, answers)             its metrics, by name
"""
