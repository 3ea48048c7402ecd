"""What the commands about groups, offsets and records do, and what they share.

``reaching`` says how they get to the brokers, ``times`` reads times and durations, ``tables`` writes for people; the
others each do one command. What a command says of itself stands in its own module beside this folder, which imports
these when it runs.
"""
