"""Runs one job, from a request to finished files: plan, workers, in-flight window, progress and reports.

In: settings and inputs. Out: finished files, or an error that says what failed, where, and what to type next. `job`
plans a job, `run` carries it out. May import `inputs`, `output` and everything below them; imported by `cluster` and
`api`.
"""
