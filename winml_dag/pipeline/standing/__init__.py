"""What is remembered of a request between two runs, and whether it still holds.

Reading a recipe, resolving it, declaring and deciding thousands of stages takes many times as long as seeing that all
is as it was. So the graph that a request led to is noted, and when it was carried out, what lies in the store and where
its user finds it; together with evidence: what one stat says of every file and folder that had a say, the versions of
all installed packages, and the state of this program's own code. It only ever stands for itself: what differs is
decided afresh, from the same graph.

``note`` is the file, ``evidence`` and ``surroundings`` what is compared, ``check`` compares, ``recall`` makes a graph,
or a part of one, from it, ``noting`` writes it.
"""
