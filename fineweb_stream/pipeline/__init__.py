"""One job, from what is asked for to finished files: plan, workers, window, and what is said meanwhile.

In: settings and inputs. Out: finished files, or an error that says where and what to type next. `job` plans it,
`run` is the story.
May import `inputs`, `output` and all below them; imported by `cluster` and `api`.
"""
