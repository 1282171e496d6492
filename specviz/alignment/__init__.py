"""The alignment lab: many prompts, a text each from the target, one teacher-forced pass per model, tables, a report.

`rows` says what travels between the parts; `shard` is the only part that reads models; the others know numbers alone.
"""
