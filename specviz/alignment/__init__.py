"""The alignment lab: many prompts, a text each from the target, one teacher-forced pass per model, tables, a report.

`types` has what travels between the modules. `shard`, `token_stats`, `generate`, `model_identity` and `causes` hold
models, the others numbers alone.
"""
