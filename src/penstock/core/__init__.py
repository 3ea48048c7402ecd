"""What is decided, apart from what is done.

Nothing in here has a clock, does IO, logs, or rolls dice: time and chance are passed in, effects and values come out,
state is tables. So each decision is tested without an event loop, by example and by Hypothesis, in milliseconds.
"""
