"""One run, from blocks to finished files: settings, the plan, the workers, the window, and what is said meanwhile.

In: settings and inputs. Out: finished files, or an error that says where and what to type next. `run` is the story.
May import `inputs`, `output` and all below them; imported by `cluster` and `api`.
"""
