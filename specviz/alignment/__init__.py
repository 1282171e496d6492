"""The alignment lab: many prompts, a text each from the target, one teacher-forced pass per model, tables, a report.

`types` holds the values that travel between the modules. `shard`, `token_stats`, `ahead`, `generate`, `model_identity`
and `causes` hold models, the others numbers alone.
"""
