# %% [markdown]
# # What the mediator carried
#
# Any editor that knows cells runs this file as a notebook (Jupyter by jupytext, VS Code, PyCharm);
# `python analysis.py EXPORT [TABLES]` runs it from the beginning to the end.

# %%
import sys

import projections

export, tables = sys.argv[1], "".join(sys.argv[2:3]) or None  # in a notebook write your places here
log = projections.open(export, tables, within_s=300)
print(log.span)

# %% [markdown]
# ## What there is

# %%
for name, about in log.names.items():
    print(f"{name:20} {about}")

# %% [markdown]
# ## How soon messages are picked up
#
# Only bins that are over and exported: a bin that is not complete looks worse than it is.

# %%
level = log.pandas("service_level")
level = level[level.is_complete]
shares = level.pivot_table(index="bin_start", columns="protocol", values="share_in_time")
print(level.groupby("protocol")[["messages", "picked_up", "in_time"]].sum())
if not shares.empty:  # else no bin is complete yet
    shares.plot(ylim=(0, 1.05), title="Share of messages picked up within five minutes")

# %% [markdown]
# ## Who writes to whom
#
# Any SQL of DuckDB, over every name above.

# %%
print(
    log.sql("""
        SELECT sender_did, identity, messages, bytes,
               round(messages / sum(messages) OVER (), 3) AS share
        FROM pairs
        WHERE sender_did <> ''
        ORDER BY messages DESC
        LIMIT 10
    """).df()
)

# %% [markdown]
# ## Who stays

# %%
cohorts = log.pandas("cohorts")
print(cohorts.pivot_table(index="cohort", columns="weeks_since", values="share").round(2))

# %% [markdown]
# ## What is refused, beside what is accepted

# %%
acceptance = log.pandas("acceptance")
print(acceptance[["accepted", "commands_refused", "queues_refusing"]].sum())
print(log.pandas("refusals_by_kind").head(10))

# %% [markdown]
# ## Whose messages wait longest
#
# From a rebuilt table, if some were opened: how things stood where the log ends.

# %%
if log.generation is not None:
    print(
        log.sql("""
            SELECT identity, count(*) AS messages, min(recorded_at) AS oldest
            FROM queues
            GROUP BY identity
            ORDER BY oldest
            LIMIT 10
        """).df()
    )

# %%
log.close()
